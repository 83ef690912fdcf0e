"""Logs in the formats of other programs: TensorBoard, MLflow, Weights & Biases.

Read first: points.py (the one description of what is logged, read from the record), then
follow.py, which keeps logs equal to the records of runs, live or afterwards. targets.py reads
--log and --to; tensorboard.py, mlflow.py and wandb.py write one format each (base.py says how).
Nothing is sent anywhere: all of them write local files.
"""
