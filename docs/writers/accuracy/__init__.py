"""How accurate the simulation is: the page that says so, and what it is made of."""
