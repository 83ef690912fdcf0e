// Where the workers of a graph are drawn, in the unit square. Everything repeats: no chance.

/** Around a circle, workers of one kind next to each other. */
export function ring(order) {
  const places = [];
  order.forEach((worker, index) => {
    const angle = (2 * Math.PI * index) / order.length - Math.PI / 2;
    places[worker] = { x: 0.5 + 0.44 * Math.cos(angle), y: 0.5 + 0.44 * Math.sin(angle) };
  });
  return places;
}

/**
 * Springs along the links (fast links are shorter), repulsion between all, a pull to the middle.
 * Starts from the places of the round before, so that workers move little from round to round.
 */
export function force(start, links, { iterations = 200 } = {}) {
  const count = start.length;
  const points = start.map((place) => ({ x: place.x - 0.5, y: place.y - 0.5 }));
  if (count < 2) return [{ x: 0.5, y: 0.5 }];
  const ideal = 0.9 / Math.sqrt(count);
  const times = links.map((link) => link.time).filter(Number.isFinite).sort((a, b) => a - b);
  const middle = times[times.length >> 1] || 1;
  const degree = new Array(count).fill(0);
  for (const { a, b } of links) {
    degree[a] += 1;
    degree[b] += 1;
  }
  for (let step = 0; step < iterations; step += 1) {
    const heat = 0.06 * (1 - step / iterations);
    const moves = points.map((point) => ({ x: -point.x * 0.16, y: -point.y * 0.16 }));
    for (let i = 0; i < count; i += 1) {
      for (let j = i + 1; j < count; j += 1) {
        const [dx, dy] = [points[i].x - points[j].x || 1e-4 * (i - j), points[i].y - points[j].y || 1e-4];
        const push = (ideal * ideal) / (dx * dx + dy * dy);
        moves[i].x += dx * push;
        moves[i].y += dy * push;
        moves[j].x -= dx * push;
        moves[j].y -= dy * push;
      }
    }
    for (const { a, b, time } of links) {
      const [dx, dy] = [points[a].x - points[b].x, points[a].y - points[b].y];
      const distance = Math.hypot(dx, dy) || 1e-6;
      const wanted = ideal * Math.min(1.5, Math.max(0.8, Math.sqrt((time ?? middle) / middle)));
      const pull = ((distance - wanted) / distance) * (0.8 / Math.min(degree[a], degree[b]));
      const share = degree[a] / (degree[a] + degree[b]);
      moves[a].x -= dx * pull * (1 - share);
      moves[a].y -= dy * pull * (1 - share);
      moves[b].x += dx * pull * share;
      moves[b].y += dy * pull * share;
    }
    points.forEach((point, index) => {
      const size = Math.hypot(moves[index].x, moves[index].y) || 1e-9;
      const share = Math.min(size, heat) / size;
      point.x += moves[index].x * share;
      point.y += moves[index].y * share;
    });
  }
  return fitted(points);
}

function fitted(points) {
  const [xs, ys] = [points.map((point) => point.x), points.map((point) => point.y)];
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  const [width, height] = [Math.max(...xs) - left || 1, Math.max(...ys) - top || 1];
  return points.map((point) => ({ x: 0.06 + (0.88 * (point.x - left)) / width, y: 0.06 + (0.88 * (point.y - top)) / height }));
}

/** The tree of a group average: the root on top, then its children; all others in rows below. */
export function tree(count, root, links, perRow) {
  const neighbors = Array.from({ length: count }, () => []);
  for (const { a, b } of links) {
    neighbors[a].push(b);
    neighbors[b].push(a);
  }
  const children = Array.from({ length: count }, () => []);
  const depth = new Array(count).fill(null);
  const order = [];
  if (root !== null) {
    depth[root] = 0;
    order.push(root);
    for (let place = 0; place < order.length; place += 1) {
      const worker = order[place];
      for (const neighbor of neighbors[worker].sort((a, b) => a - b)) {
        if (depth[neighbor] !== null) continue;
        depth[neighbor] = depth[worker] + 1;
        children[worker].push(neighbor);
        order.push(neighbor);
      }
    }
  }
  const leaves = new Array(count).fill(0);
  for (const worker of [...order].reverse()) {
    leaves[worker] = Math.max(1, children[worker].reduce((sum, child) => sum + leaves[child], 0));
  }
  const x = [];
  const spread = (worker, from) => {
    x[worker] = from + leaves[worker] / 2;
    let place = from;
    for (const child of children[worker]) {
      spread(child, place);
      place += leaves[child];
    }
  };
  if (root !== null) spread(root, 0);
  const others = Array.from({ length: count }, (_, worker) => worker).filter((worker) => depth[worker] === null);
  const deepest = order.length ? Math.max(...order.map((worker) => depth[worker])) : -1;
  const rows = Math.ceil(others.length / perRow);
  const levels = deepest + 1 + rows + (rows && deepest >= 0 ? 0.6 : 0);
  const y = (level) => (levels <= 1 ? 0.5 : 0.07 + (0.86 * level) / (levels - 1 || 1));
  const places = [];
  for (const worker of order) places[worker] = { x: 0.04 + (0.92 * x[worker]) / leaves[root], y: y(depth[worker]) };
  others.forEach((worker, index) => {
    const row = Math.floor(index / perRow);
    const inRow = Math.min(perRow, others.length - row * perRow);
    places[worker] = { x: 0.04 + (0.92 * ((index % perRow) + 0.5)) / inRow, y: y(deepest + 1 + row + (deepest >= 0 ? 0.6 : 0)) };
  });
  return { places, outside: deepest >= 0 && rows ? y(deepest + 0.8) : null };
}
