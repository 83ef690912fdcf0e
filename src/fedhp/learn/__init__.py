"""Learning: models, tasks, rows of parameters, local SGD, estimators, mixing, evaluation."""
