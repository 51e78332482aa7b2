"""Live re-striping: the number of queues of a group changes while publishers and members go on (docs/restripe.md)."""
