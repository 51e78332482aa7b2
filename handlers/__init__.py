"""Example handlers; `config.yaml` names them."""
