"""The process of a coordinator, around one that leads.

Read first: leadership.py (check the settings, lead, once or again and again). network_checks.py
refuses experiments that machines cannot carry out, announcements.py and finders.py are how others
find the leader, standby.py answers before it leads, metrics.py is the Prometheus page.
"""
