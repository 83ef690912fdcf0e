"""The heterogeneous world and its virtual time: devices, network, availability, traces.

Every value is a function of the seed and of (worker, round) or virtual time alone, so that
all algorithms with one seed live in the same world.
"""

from fedhp.world.world import World, build_world

__all__ = ["World", "build_world"]
