"""The web page that shows running and finished runs: `fedhp dash`.

It reads what reports read, the record and the history of a run, and changes nothing. Begin with
app.py, the list of what is served; schema.py has the shape of every answer. runs.py finds the
runs, progress.py reads numbers, workers.py and events.py say who did what, stream.py tells
viewers what is new, made.py answers "what if" and who has which data, actions.py stops
a cluster run. security.py decides who may ask, server.py listens, child.py starts the page next to
a run.
"""
