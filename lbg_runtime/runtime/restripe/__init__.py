"""The shell of `lbg group restripe`: it drives the conductor of `core/restripe` over SEMP and the control topic."""
