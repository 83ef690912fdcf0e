"""The built-in models and tasks and their settings, to be checked before torch is imported."""

from __future__ import annotations

MODEL_SETTINGS: dict[str, tuple[str, ...]] = {
    "alexnet": ("width",),
    "cnn": ("width",),
    "logistic": (),
    "mlp": ("hidden",),
    "resnet20": ("width", "norm"),
    "small_cnn": ("width",),
    "vgg16": ("width", "norm"),
}
MODELS = {name: f"fedhp.learn.models:{name}" for name in MODEL_SETTINGS}
TASKS = {"classification": "fedhp.learn.task:Classification"}
