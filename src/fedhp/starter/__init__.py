"""Files that are installed with fedhp: the demo, and what `fedhp init` copies into a new folder.

Read first: experiment.toml, then own_model.py and own_algorithm.py, which it can name.
"""

from pathlib import Path

DEMO = Path(__file__).with_name("demo.toml")
COPIED = ("experiment.toml", "own_model.py", "own_algorithm.py")
