"""The group as one member sees it: who is alive, who should have which queue, and how a queue gets there."""
