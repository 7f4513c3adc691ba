"""Three machines in a row, each with an agent, real traffic between them, and a wire and clocks that misbehave."""
