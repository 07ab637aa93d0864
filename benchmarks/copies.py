"""False alarms of the search for copies, and its time: ``python -m benchmarks.copies FOLDER``.

``FOLDER`` has bundles that were trained apart, one a folder. Each is compared with this project's players and with all
others.
"""

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multigrid_rl.competition.copies import Fingerprint, Originals
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.files import data_root
from multigrid_rl.players.catalogue import Catalogue

#: Entries whose comparison is timed.
ENTRIES = 300


def alarms(originals: Originals, prints: Mapping[str, Fingerprint]) -> dict[str, str]:
    """Return whom each network is said to be like, for those that are."""
    found = {}
    for name, its in prints.items():
        others = {other: each for other, each in prints.items() if other != name}
        found[name] = "; ".join(map(str, originals.similar(its, others)))
    return {name: told for name, told in found.items() if told}


def seconds_of_all(originals: Originals, folders: list[Path]) -> float:
    """Return processor seconds in which :data:`ENTRIES` entries are read and compared with each other."""
    began = time.process_time()
    prints = {f"h{k}": originals.fingerprint(folders[k % len(folders)]) for k in range(ENTRIES)}
    alarms(originals, prints)
    return time.process_time() - began


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scenario", default="1v1")
    asked = parser.parse_args()
    folders = sorted(path for path in asked.folder.iterdir() if (path / "card.json").exists())
    originals = Originals(load_scenario(asked.scenario).spec, Catalogue(data_root() / "checkpoints"))
    prints = {path.name: originals.fingerprint(path) for path in folders}
    told: dict[str, Any] = {"honest": len(prints), "named": alarms(originals, prints)}
    told[f"cpu_s_of_{ENTRIES}"] = round(seconds_of_all(originals, folders), 1)
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
