"""Live progress in the terminal: bars where a person watches, plain lines elsewhere."""

from fedhp.console.progress import CampaignProgress, RunProgress

__all__ = ["CampaignProgress", "RunProgress"]
