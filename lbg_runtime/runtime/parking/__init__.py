"""Parking keys with their successors: a member's stay at a parking queue, and the view of one from outside."""
