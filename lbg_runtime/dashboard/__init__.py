"""The live page of a group: who has which queue, and every move as it happens. It observes, and changes nothing."""
