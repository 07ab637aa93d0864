"""Pseudonyms: two plain words, which say nothing about a person."""

import secrets
from collections.abc import Container

_HOW = (
    "amber azure brave brisk bright calm clever coral cosmic crisp daring eager early fair fleet gentle golden grand "
    "green happy hardy honest humble ivory jade jolly keen kind lively lucid lucky lunar mellow merry mighty misty "
    "modest noble northern patient plucky polite proud quick quiet rapid ready royal ruby silent silver smooth solar "
    "spry steady stellar sturdy sunny swift tidy vivid warm wise witty"
)
_WHO = (
    "badger beaver bison bobcat buffalo camel caribou cheetah condor cougar crane cricket dolphin eagle egret elk "
    "falcon ferret finch fox gazelle gecko gibbon hare hawk heron hornet ibex iguana jackal jaguar kestrel koala lemur "
    "leopard lion lizard lynx magpie marlin marten moose narwhal newt ocelot orca osprey otter owl panda pelican "
    "penguin puffin puma quail rabbit raccoon raven robin salmon seal shrew sparrow squid stoat stork swan tapir tiger "
    "toucan turtle viper walrus weasel whale wolf wombat wren yak zebra"
)


def pseudonym(taken: Container[str]) -> str:
    """Return a name that nobody has; with a number where all are taken."""
    for attempt in range(1_000_000):
        number = f" {attempt // 50}" if attempt >= 50 else ""
        name = f"{secrets.choice(_HOW.split())} {secrets.choice(_WHO.split())}{number}"
        if name not in taken:
            return name
    raise AssertionError("a million names were taken")
