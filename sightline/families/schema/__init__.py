"""How a family is declared: config keys, weight-name rules, spelling, unsupported options."""
