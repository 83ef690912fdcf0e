"""How much code a round passes; these counts may only fall."""

from bench.round_path import modules_of, named, network, simulated

FUNCTIONS, MODULES = 129, 27
NETWORK_FUNCTIONS, NETWORK_MODULES = 330, 55  # functions without comprehensions and lambdas


def test_a_simulated_round_passes_few_functions_and_modules() -> None:
    functions = simulated()
    assert len(functions) <= FUNCTIONS
    assert len(modules_of(functions)) <= MODULES


def test_a_network_round_passes_few_functions_and_modules() -> None:
    functions = named(network())
    assert len(functions) <= NETWORK_FUNCTIONS
    assert len(modules_of(functions)) <= NETWORK_MODULES
