"""How a member talks to a broker: one narrow protocol, `memory` on the engine, and `solace` on the official client."""
