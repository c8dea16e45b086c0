"""Whether a server keeps the rules of the contract, for people who write servers in any language."""
