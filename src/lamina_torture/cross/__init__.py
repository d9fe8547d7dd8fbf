"""Format × tier × damage × user: what each cell promises, and a runner that holds it to that."""
