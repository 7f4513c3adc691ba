"""How large a sketch has to be, as its paper says and as measured."""
