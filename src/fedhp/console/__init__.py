"""Live progress in the terminal: bars for a person, plain lines in a file or pipe.

progress.py shows runs, campaign.py many of them with a forecast.py of the time left, cluster.py a
run over the network, heartbeat.py other long work.
"""

from fedhp.console.heartbeat import Activity
from fedhp.console.progress import CampaignProgress

__all__ = ["Activity", "CampaignProgress"]
