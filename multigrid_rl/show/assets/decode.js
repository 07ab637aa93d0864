/* Games as show/replay.py packed them, turned back into frames. No document needed. */

const CELLS = 128;
const HEIGHT = 8;
const WIDTH = 16;
const EMPTY = 1;
const WALL = 2;
const AGENT = 15;
/** Steps in x and y of each heading: +x, +y, -x, -y. */
const AHEAD = [[1, 0], [0, 1], [-1, 0], [0, -1]];

/** One frame, made of its bytes. */
function decodeFrame(spec, row) {
  const agents = spec.seats.length;
  const tokens = spec.view * spec.view + 2;
  const part = (k) => row.subarray(CELLS + k * agents, CELLS + (k + 1) * agents);
  return {
    cells: row.subarray(0, CELLS), position: part(0), heading: part(1), hand: part(2), out: part(3),
    tokens: spec.seats.map((_, a) => row.subarray(row.length - (agents - a) * tokens).subarray(0, tokens)),
  };
}

/**
 * One game with every frame, made of its decompressed `bytes`.
 *
 * frames[t] has cells (128), position, heading, hand, out (A each) and tokens (A rows of V * V cell codes as [i][j],
 * heading, mission). words[t - 1][a] is what agent a did in step t, rewards[t][a] its return up to frame t, paid[t][a]
 * of the step alone.
 */
function decodeGame(game, bytes, data) {
  const spec = data.specs[game.spec];
  const agents = spec.seats.length;
  const length = bytes.length / (game.steps + 1);
  const frames = Array.from({ length: game.steps + 1 }, (_, t) => decodeFrame(spec, bytes.subarray(t * length, (t + 1) * length)));
  const words = [];
  const paid = frames.map(() => spec.seats.map(() => 0));
  for (const [t, a, value] of game.rewards) paid[t + 1][a] = value;
  const rewards = [paid[0]];
  for (let t = 0; t < game.steps; t += 1) {
    words.push(game.words.slice(t * agents, (t + 1) * agents).map((k) => data.words[k]));
    rewards.push(rewards[t].map((value, a) => value + paid[t + 1][a]));
  }
  return {
    ...game, spec, frames, words, paid, rewards,
    moments: game.moments.map(([t, a]) => [t + 1, a]), players: game.players.map((k) => data.players[k]),
  };
}

/** Whether agent a was eliminated by frame t: a win takes everybody out, but moves only the eliminated. */
function eliminated(game, frame, a) {
  return frame.out[a] === 1 && frame.position[a] === game.spec.rooms[game.spec.teams[a]];
}

/** Board cells that agent a sees at frame t, each once: its window ends at the board's edge. */
function seenCells(game, t, a) {
  const frame = game.frames[t];
  const { view } = game.spec;
  const [fx, fy] = AHEAD[frame.heading[a]];
  const inside = (value, size) => Math.min(Math.max(value, 0), size - 1);
  const cells = new Set();
  for (let k = 0; k < view * view; k += 1) {
    const right = Math.floor(k / view) - (view - 1) / 2;
    const ahead = view - 1 - (k % view);
    const x = Math.floor(frame.position[a] / HEIGHT) + ahead * fx - right * fy;
    const y = (frame.position[a] % HEIGHT) + ahead * fy + right * fx;
    if (frame.tokens[a][k] > 0) cells.add(inside(x, WIDTH) * HEIGHT + inside(y, HEIGHT));
  }
  return cells;
}
