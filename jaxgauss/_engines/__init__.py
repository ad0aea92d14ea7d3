"""How sums and their derivatives are computed. `test_house` lists the modules that other rooms import."""
