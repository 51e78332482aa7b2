"""Live re-striping: changing the number of a group's queues while publishers and members go on (docs/restripe.md)."""
