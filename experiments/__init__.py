"""One file a table or benchmark of the project; each runs as a script and stores what it measured in `results/`."""
