"""The broker's rules without sockets or clocks: topics, queues, spool, flows, election, settlement."""
