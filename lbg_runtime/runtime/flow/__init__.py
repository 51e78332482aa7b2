"""The flows of a member, each run by its machine of `core/flow` over the transport, and all of them as one."""
