/* Games as show/replay.py packed them, turned back into frames. No document needed. */

const CELLS = 128;
const HEIGHT = 8;
const WIDTH = 16;
const EMPTY = 1;
const WALL = 2;
const AGENT = 15;
/** Steps in x and y of each heading: +x, +y, -x, -y. */
const AHEAD = [[1, 0], [0, 1], [-1, 0], [0, -1]];

function bytesOf(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k += 1) bytes[k] = raw.charCodeAt(k);
  return bytes;
}

/** Board cell under window cell (i, j) of an agent; the window ends at the board's edge. */
function windowCell(position, heading, view, i, j) {
  const [fx, fy] = AHEAD[heading];
  const ahead = view - 1 - j;
  const right = i - (view - 1) / 2;
  const x = Math.floor(position / HEIGHT) + ahead * fx - right * fy;
  const y = (position % HEIGHT) + ahead * fy + right * fx;
  const inside = (value, size) => Math.min(Math.max(value, 0), size - 1);
  return inside(x, WIDTH) * HEIGHT + inside(y, HEIGHT);
}

function frameVectors(packed, length, steps) {
  const frames = [packed.slice(0, length)];
  let at = length;
  for (let t = 1; t <= steps; t += 1) {
    const frame = frames[t - 1].slice();
    const changed = packed[at];
    at += 1;
    for (let k = 0; k < changed; k += 1, at += 2) frame[packed[at]] = packed[at + 1];
    frames.push(frame);
  }
  return frames;
}

/** Flat (time, agent, value) rows as a map from "time,agent". */
function sparse(flat, width) {
  const rows = new Map();
  for (let k = 0; k < flat.length; k += width) {
    const key = `${flat[k]},${flat[k + 1]}`;
    if (!rows.has(key)) rows.set(key, []);
    rows.get(key).push(flat.slice(k + 2, k + width));
  }
  return rows;
}

/**
 * One game with every frame.
 *
 * frames[t] has cells (128), position, heading, hand, out, own, mission (A each) and seen (A rows of bits).
 * words[t - 1][a] is what agent a did in step t, rewards[t][a] its return up to frame t, paid[t][a] of the step alone.
 */
function decodeGame(game, data) {
  const spec = data.specs[game.spec];
  const agents = spec.seats.length;
  const rowBytes = Math.ceil((spec.view * spec.view) / 8);
  const vectors = frameVectors(bytesOf(game.frames), CELLS + agents * (6 + rowBytes), game.steps);
  const frames = vectors.map((vector) => {
    const part = (k) => vector.subarray(CELLS + k * agents, CELLS + (k + 1) * agents);
    const seen = [];
    for (let a = 0; a < agents; a += 1) {
      const start = CELLS + 6 * agents + a * rowBytes;
      seen.push(vector.subarray(start, start + rowBytes));
    }
    return {
      cells: vector.subarray(0, CELLS), position: part(0), heading: part(1), hand: part(2),
      out: part(3), own: part(4), mission: part(5), seen,
    };
  });
  const numbers = bytesOf(game.words);
  const words = [];
  for (let t = 0; t < game.steps; t += 1) {
    words.push(spec.seats.map((_, a) => {
      const at = 2 * (t * agents + a);
      return data.words[numbers[at] + 256 * numbers[at + 1]];
    }));
  }
  const paid = [spec.seats.map(() => 0)];
  const rewards = [spec.seats.map(() => 0)];
  const given = sparse(game.rewards, 3);
  for (let t = 0; t < game.steps; t += 1) {
    paid.push(spec.seats.map((_, a) => (given.get(`${t},${a}`) || [[0]])[0][0]));
    rewards.push(spec.seats.map((_, a) => rewards[t][a] + paid[t + 1][a]));
  }
  const moments = [];
  for (let k = 0; k < game.moments.length; k += 2) moments.push([game.moments[k] + 1, game.moments[k + 1]]);
  return {
    spec, steps: game.steps, frames, words, paid, rewards, moments, winner: game.winner, result: game.result,
    players: game.players.map((k) => data.players[k]), exceptions: sparse(game.exceptions, 4),
  };
}

/** Whether agent a was eliminated by frame t: a win takes everybody out, but moves only the eliminated. */
function eliminated(game, frame, a) {
  return frame.out[a] === 1 && frame.position[a] === game.spec.rooms[game.spec.teams[a]];
}

/** Board with the living agents drawn in, as views show it. */
function drawnBoard(game, frame) {
  const board = frame.cells.slice();
  const agents = game.spec.seats.length;
  for (let a = 0; agents > 1 && a < agents; a += 1) {
    if (!frame.out[a]) board[frame.position[a]] = AGENT + 4 * game.spec.teams[a] + frame.heading[a];
  }
  return board;
}

function sees(frame, a, k) {
  return ((frame.seen[a][k >> 3] >> (k & 7)) & 1) === 1;
}

/** What agent a observes at frame t: V * V cell codes as [i][j], heading, mission. */
function tokensOf(game, t, a) {
  const frame = game.frames[t];
  const { view } = game.spec;
  const board = drawnBoard(game, frame);
  const tokens = [];
  for (let k = 0; k < view * view; k += 1) {
    const cell = windowCell(frame.position[a], frame.heading[a], view, Math.floor(k / view), k % view);
    tokens.push(sees(frame, a, k) ? board[cell] : 0);
  }
  tokens[((view - 1) / 2) * view + view - 1] = frame.own[a];
  tokens.push(frame.heading[a], frame.mission[a]);
  for (const [k, value] of game.exceptions.get(`${t},${a}`) || []) tokens[k] = value;
  return tokens;
}

/** Board cells that agent a sees at frame t, each once. */
function seenCells(game, t, a) {
  const frame = game.frames[t];
  const { view } = game.spec;
  const cells = new Set();
  for (let k = 0; k < view * view; k += 1) {
    if (sees(frame, a, k)) {
      cells.add(windowCell(frame.position[a], frame.heading[a], view, Math.floor(k / view), k % view));
    }
  }
  return cells;
}
