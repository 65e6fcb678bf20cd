"""Which query worker does which work: events in, actions out; no sockets, threads or clock."""
