"""The group as one member sees it: who lives, who should have which queue, and how a queue gets there."""
