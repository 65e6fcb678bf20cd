"""Where rows come from: files and tables, looked at before a run and read in it."""
