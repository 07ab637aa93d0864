from multigrid_rl.api import Run as Run
from multigrid_rl.api import evaluate as evaluate
from multigrid_rl.api import load_player as load_player
from multigrid_rl.api import load_policy as load_policy
from multigrid_rl.api import make as make
from multigrid_rl.api import play as play
from multigrid_rl.api import train as train

__version__: str
