// What answers the mouse and the keyboard: the timeline of a cell, in a saved page and in the panel,
// and the panel itself. One plain ES module, so that it can be written into a page as it is.

const LOOKS = `
.gpumem-screen { --ink: var(--jp-ui-font-color1, var(--vscode-editor-foreground, currentColor));
  --line: rgba(128,128,128,.45); --soft: rgba(128,128,128,.16); --chosen: rgba(68,119,170,.28);
  color: var(--ink); font-size: 13px; line-height: 1.45; min-width: 0; container-type: inline-size; }
.gpumem-screen * { box-sizing: border-box; }
.gpumem-screen [hidden] { display: none !important; }
.gpumem-screen button, .gpumem-screen select, .gpumem-screen input, .gpumem-screen textarea {
  font: inherit; color: inherit; background: transparent; border: 1px solid var(--line);
  border-radius: 4px; padding: 2px 8px; max-width: 100%; min-height: 26px; }
.gpumem-screen option { color: #1c1c1c; background: #fff; }
.gpumem-screen button { cursor: pointer; }
.gpumem-screen button:disabled { opacity: .5; cursor: default; }
.gpumem-screen button[aria-pressed=true], .gpumem-screen [aria-selected=true] {
  background: var(--chosen); border-color: #4477AA; }
.gpumem-screen :focus-visible { outline: 2px solid #3b82f6; outline-offset: 1px; }
.gpumem-screen table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.gpumem-screen caption { text-align: left; font-weight: 600; caption-side: top; color: inherit; }
.gpumem-screen .g-tools { display: flex; flex-wrap: wrap; gap: 6px; align-items: center;
  margin: 6px 0; }
.gpumem-screen .g-chart { display: flex; margin: 10px 0 4px; }
.gpumem-screen .g-axis { position: relative; flex: 0 0 76px; font-size: 11px; }
.gpumem-screen .g-axis span { position: absolute; right: 6px; transform: translateY(-50%);
  white-space: nowrap; }
.gpumem-screen .g-plot { position: relative; flex: 1 1 auto; min-width: 0; height: 170px;
  cursor: crosshair; touch-action: none; overflow: hidden; border-bottom: 1px solid var(--line); }
.gpumem-screen .g-plot svg { display: block; width: 100%; height: 100%; }
.gpumem-screen .g-mark, .gpumem-screen .g-brush { position: absolute; top: 0; bottom: 0;
  pointer-events: none; }
.gpumem-screen .g-mark { width: 2px; margin-left: -1px; background: var(--ink); }
.gpumem-screen .g-brush { background: var(--chosen); }
.gpumem-screen .g-ends { display: flex; justify-content: space-between; gap: 8px;
  margin-left: 76px; font-size: 11px; }
.gpumem-screen .g-said { min-height: 4.4em; margin-left: 76px; overflow-wrap: anywhere; }
.gpumem-screen .g-patch { display: inline-block; width: 10px; height: 10px; border-radius: 2px;
  margin-right: 5px; }
.gpumem-screen code, .gpumem-screen pre { font-family: ui-monospace, Menlo, Consolas, monospace;
  background: transparent; color: inherit; padding: 0; margin: 0; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: .95em; }
.gpumem-screen .g-blocks { max-height: 260px; overflow: auto; }
.gpumem-screen .g-blocks th, .gpumem-screen .g-blocks td { padding: 2px 8px 2px 0; text-align: left;
  vertical-align: top; border: 0; border-top: 1px solid var(--soft); font-weight: normal; }
.gpumem-screen .g-blocks thead th { border: 0; opacity: .75; }
.gpumem-screen .g-blocks code { overflow-wrap: break-word; }
.gpumem-screen .g-blocks td:nth-child(2), .gpumem-screen .g-blocks td:nth-child(4) {
  white-space: nowrap; }
@container (max-width: 560px) {
  .gpumem-screen .g-blocks tr { display: flex; flex-wrap: wrap; border-top: 1px solid var(--soft); }
  .gpumem-screen .g-blocks th, .gpumem-screen .g-blocks td { border: 0; }
  .gpumem-screen .g-blocks th { flex: 1 1 100%; }
  .gpumem-screen .g-blocks thead { display: none; } }
`;

const UNITS = ["bytes", "KiB", "MiB", "GiB"];

/** Bytes as text; as `units.format_bytes` writes them. */
export function bytes(size, decimals = 2) {
  let place = 0;
  for (let rest = Math.abs(size); rest >= 1024 && place < 3; rest /= 1024) place += 1;
  return place === 0 ? `${size} bytes` : `${(size / 1024 ** place).toFixed(decimals)} ${UNITS[place]}`;
}

/** Bytes for a table; as `units.format_size` writes them. */
function size(of) {
  return bytes(of, Math.abs(of) >= 1024 ** 3 && Math.abs(of) < 10 * 1024 ** 3 ? 2 : 1);
}

/** A round size without the zeros behind it. */
function tick(of) {
  const [number, unit] = bytes(of).split(" ");
  return `${Number(number)} ${unit}`;
}

function seconds(time) {
  if (time < 1) return `${Number((time * 1000).toPrecision(3))} ms`;
  return time < 60 ? `${time.toFixed(2)} s` : `${Math.floor(time / 60)} min ${(time % 60).toFixed(0)} s`;
}

const KEYS = new WeakMap(); // what acts on keys, by element

/** Let what is in `place` act on keys before the notebook does, whose shortcuts they may be. */
export function keys(place) {
  const act = (event) => {
    if (!place.contains(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopImmediatePropagation();
    for (let one = event.target; one !== place.parentElement; one = one.parentElement) {
      KEYS.get(one)?.(event);
    }
  };
  window.addEventListener("keydown", act, true);
  return () => window.removeEventListener("keydown", act, true);
}

/** An element: properties that begin with "on" are listeners; children may be text. */
function make(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "onkeydown") KEYS.set(made, value);
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function looks(place) {
  place.classList.add("gpumem-screen");
  place.prepend(make("style", {}, LOOKS));
}

/** Running sums: columns come as differences, which are short. */
function summed(column) {
  let sum = 0;
  return column.map((change) => (sum += change));
}

/** Round sizes from 0 to `top`, powers of two apart. */
function steps(top) {
  let step = 2 ** Math.ceil(Math.log2(Math.max(top, 1) / 5 + 1));
  if (top / step < 3 && step > 1) step /= 2;
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step);
}

/** The memory of a cell over its course, in `place`; `data` is made by `interactive.py`. */
export function timeline(place, data) {
  const kinds = data.kinds.map(([name, colour, sizes]) => ({ name, colour, sizes: summed(sizes) }));
  const [time, reserved] = [summed(data.time).map((t) => t / 1e6), summed(data.reserved)];
  const count = time.length;
  const whole = Math.max(time[count - 1], 1e-9);
  const allocated = time.map((_, i) => kinds.reduce((sum, kind) => sum + kind.sizes[i], 0));
  const [most, held] = [Math.max(...allocated, 0), Math.max(...reserved, 0)];
  const near = held <= 3 * most || !most; // else the cell's course would be flat below a large cache
  const highest = Math.max(most, near ? held : 0, 1);
  const seen = data.limit && data.limit <= 3 * highest;
  const far = [near ? "" : `reserved ${bytes(held)}`,
    data.limit && !seen ? `limit ${bytes(data.limit)}` : ""].filter(Boolean);
  const top = (seen ? Math.max(highest, data.limit) : highest) * 1.04;
  const state = { point: data.peak, kind: -1, window: [0, 1], events: true, from: null };

  const edge = (i) => (state.events ? i / count : time[Math.min(i, count - 1)] / whole);
  const across = (i) => (edge(i) - state.window[0]) / (state.window[1] - state.window[0]);
  const within = (share) => state.window[0] + share * (state.window[1] - state.window[0]);

  function pointAt(share) {
    const wanted = within(share);
    let [low, high] = [0, count - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (edge(middle) <= wanted) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The kind whose band lies at a size, at the chosen point; -1 for none. */
  function kindAt(size) {
    let floor = 0;
    return kinds.findIndex((kind) => {
      const below = floor;
      floor += kind.sizes[state.point];
      return size >= below && size < floor;
    });
  }

  const y = (size) => 1000 - (1000 * size) / top;
  const x = (i) => Math.max(-1e5, Math.min(1e5, 1000 * across(i))).toFixed(1);

  function course(sizes) {
    let path = "";
    for (let i = 0, before = -1; i < count; i += 1) {
      if (sizes[i] !== before) path += `H${x(i)}V${y(sizes[i]).toFixed(1)}`;
      before = sizes[i];
    }
    return `${path}H${x(count)}`;
  }

  function drawn(name, properties) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
    return made;
  }

  const thin = { fill: "none", "vector-effect": "non-scaling-stroke" };
  const level = (size, colour, dash) =>
    drawn("path", { ...thin, d: `M0,${y(size)}H1000`, stroke: colour, "stroke-dasharray": dash });

  function draw() {
    let floor = time.map(() => 0);
    const bands = kinds.map((kind, i) => {
      floor = floor.map((size, j) => size + kind.sizes[j]);
      return drawn("path", { d: `M${x(0)},1000${course(floor)}V1000Z`, fill: kind.colour,
        opacity: state.kind < 0 || state.kind === i ? 1 : 0.55 });
    });
    const lines = steps(top).map((size) => level(size, "rgba(128,128,128,.35)", ""));
    const grey = drawn("path", { ...thin, d: `M${x(0)},1000${course(reserved)}`, stroke: "#808080",
      "stroke-width": 1.5 });
    picture.replaceChildren(...lines, ...bands.reverse(), ...(near ? [grey] : []));
    if (seen) picture.append(level(data.limit, "#EE6677", "6 4"));
    if (data.oom !== null) {
      picture.append(drawn("path", { ...thin, d: `M${x(data.oom + 1)},0V1000`, stroke: "#EE6677",
        "stroke-width": 3 }));
    }
    const [first, last] = [pointAt(0), pointAt(0.999999)];
    ends.replaceChildren(make("span", {}, first ? seconds(time[first]) : "0 s"),
      make("span", {}, state.events ? "event by event" : "by the clock"),
      make("span", {}, seconds(time[last])));
    tell();
  }

  function blocksAt(point, kind) {
    return data.blocks.filter(([, of, , born, died]) => born <= point && point < died
      && (kind < 0 || of === kind));
  }

  /** What the allocator did to come to this point: the largest block that was made or freed. */
  function happened(point) {
    const at = data.blocks.find(([, , , born, died]) => point && (born === point || died === point));
    if (!at || !data.lives) return "";
    const [size, , , born, , name, , stack] = at;
    const where = (data.stacks[stack] || [])[0];
    const place = where ? `, made in ${where}` : "";
    return `${born === point ? "allocated" : "freed"} here: ${name} ${bytes(size)}${place}`;
  }

  function tell() {
    const { point, kind } = state;
    const share = Math.min(Math.max(across(point), 0), 1);
    mark.style.left = `${100 * share}%`;
    const facts = [`${seconds(time[point])}${point === data.peak ? " (the peak)" : ""}`];
    const line = data.line[point];
    if (line) facts.push(`line ${line}: ${data.source[line - 1] || ""}`.trim());
    const module = data.modules[data.module[point]];
    if (module) facts.push(module);
    if (kind >= 0) facts.push(`${kinds[kind].name} ${bytes(kinds[kind].sizes[point])}`);
    facts.push(`${bytes(allocated[point])} allocated`, `${bytes(reserved[point])} reserved`);
    const text = [...facts, happened(point)].filter(Boolean).join(" · ");
    said.textContent = text;
    plot.setAttribute("aria-valuenow", point);
    plot.setAttribute("aria-valuetext", text);
  }

  function list() {
    const { point, kind } = state;
    const rows = blocksAt(point, kind).sort((a, b) => b[0] - a[0]);
    const sum = kind < 0 ? allocated[point] : kinds[kind].sizes[point];
    const rest = sum - rows.reduce((all, row) => all + row[0], 0);
    const what = kind < 0 ? "allocated" : kinds[kind].name;
    const shown = rows.slice(0, 100).map(([of, , line, , , name, tensor, stack]) =>
      make("tr", {}, make("th", { scope: "row" }, make("code", {}, name)), make("td", {}, size(of)),
        make("td", {}, tensor), make("td", {}, ...madeIn(line, data.stacks[stack] || []))));
    const more = rest > 0 || rows.length > 100
      ? make("div", {}, `and ${rows.length > 100 ? `${rows.length - 100} more, ` : ""}`
        + `${bytes(Math.max(rest, 0))} in blocks that are not listed`) : null;
    const head = make("caption", {}, `${what} at ${seconds(time[point])}: ${bytes(sum)}`);
    const names = ["name", "size", "tensor", "made in"];
    const columns = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
    const table = make("table", {}, head, make("thead", {}, columns), make("tbody", {}, ...shown));
    blocks.replaceChildren(table, ...(more ? [more] : []));
  }

  /** The line of the cell, and the call stack where that tells more. */
  function madeIn(line, stack) {
    const [first, ...callers] = stack;
    const own = line && first !== line ? [make("div", {}, line)] : [];
    if (!callers.length) return [...own, first];
    return [...own, make("details", {}, make("summary", {}, first),
      make("pre", {}, callers.join("\n")))];
  }

  function zoom(begin, end) {
    const least = 2 / Math.max(count, 2);
    if (end - begin < least) [begin, end] = [(begin + end - least) / 2, (begin + end + least) / 2];
    state.window = [Math.max(begin, 0), Math.min(end, 1)];
    whole_.disabled = state.window[0] === 0 && state.window[1] === 1;
    draw();
  }

  function scale(factor) {
    const [begin, end] = state.window;
    const middle = edge(state.point);
    zoom(middle - (middle - begin) * factor, middle + (end - middle) * factor);
  }

  function move(point) {
    state.point = Math.max(0, Math.min(count - 1, point));
    if (state.kind >= 0 && !kinds[state.kind].sizes[state.point]) state.kind = -1;
    const share = across(state.point);
    const [begin, end] = state.window;
    if (share < 0 || share > 1) {
      const half = (end - begin) / 2;
      const middle = Math.min(Math.max(edge(state.point), half), 1 - half);
      zoom(middle - half, middle + half);
    } else tell();
  }

  /** Choose the band above or below; past the last one, and at first, all of them are meant. */
  function turn(by) {
    const there = [-1, ...kinds.keys()].filter((i) => i < 0 || kinds[i].sizes[state.point]);
    state.kind = there.at((there.indexOf(state.kind) + by) % there.length);
    draw();
  }

  const acts = {
    ArrowLeft: (by) => move(state.point - by), ArrowRight: (by) => move(state.point + by),
    ArrowUp: () => turn(1), ArrowDown: () => turn(-1), Home: () => move(0),
    End: () => move(count - 1), Enter: list, " ": list, "+": () => scale(0.5),
    "=": () => scale(0.5), "-": () => scale(2), 0: () => zoom(0, 1), Escape: () => zoom(0, 1),
    p: () => move(data.peak),
  };

  function key(event) {
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act(event.shiftKey ? 10 : 1);
  }

  function spot(event) {
    const box = plot.getBoundingClientRect();
    return [Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1),
      top * (1 - (event.clientY - box.top) / box.height)];
  }

  function hover(event) {
    const [share, size] = spot(event);
    if (state.from !== null && Math.abs(share - state.from) * plot.clientWidth > 4) {
      brush.style.display = "block";
      brush.style.left = `${100 * Math.min(share, state.from)}%`;
      brush.style.width = `${100 * Math.abs(share - state.from)}%`;
    }
    state.point = pointAt(share);
    const kind = kindAt(size);
    if (kind !== state.kind) {
      state.kind = kind;
      draw();
    } else tell();
  }

  function press(event) {
    state.from = spot(event)[0];
    plot.setPointerCapture(event.pointerId);
  }

  function release(event) {
    const [share] = spot(event);
    const brushed = brush.style.display === "block";
    brush.style.display = "none";
    const from = state.from;
    state.from = null;
    if (from === null) return;
    if (brushed) zoom(within(Math.min(share, from)), within(Math.max(share, from)));
    else list();
  }

  function axis(event) {
    state.events = !state.events;
    state.window = [0, 1];
    event.currentTarget.setAttribute("aria-pressed", !state.events);
    zoom(0, 1);
  }

  const picture = drawn("svg", { viewBox: "0 0 1000 1000", preserveAspectRatio: "none",
    "aria-hidden": "true" });
  const mark = make("div", { class: "g-mark" });
  const brush = make("div", { class: "g-brush", style: "display:none" });
  const plot = make("div", { class: "g-plot", tabindex: 0, role: "slider", "aria-label": data.name,
    "aria-valuemin": 0, "aria-valuemax": count - 1, onkeydown: key, onpointermove: hover,
    onpointerdown: press, onpointerup: release }, picture, brush, mark);
  const labels = steps(top).map((size) =>
    make("span", { style: `top:${y(size) / 10}%` }, tick(size)));
  const ends = make("div", { class: "g-ends" });
  const said = make("div", { class: "g-said" });
  const blocks = make("div", { class: "g-blocks", tabindex: 0, role: "region",
    "aria-label": "Blocks of the band that was chosen", "aria-live": "polite" });
  const whole_ = make("button", { type: "button", disabled: "", onclick: () => zoom(0, 1) }, "Whole");
  const tools = make("div", { class: "g-tools" },
    make("button", { type: "button", "aria-pressed": false, onclick: axis }, "Axis: time"),
    make("button", { type: "button", onclick: () => scale(0.5) }, "Zoom in"), whole_,
    make("button", { type: "button", onclick: () => move(data.peak) }, "Peak"),
    make("span", { style: "opacity:.75;font-size:11px" },
      "drag: zoom · click: blocks · keys: ← → moment, ↑ ↓ kind, Enter blocks, + − 0 zoom"));
  const legend = make("div", { class: "g-tools", style: "margin-left:76px;gap:0 14px;font-size:12px" },
    ...kinds.filter((kind) => kind.sizes.some(Boolean)).map((kind) => make("span", {},
      make("span", { class: "g-patch", style: `background:${kind.colour}` }), kind.name)),
    near ? make("span", {}, "grey line: reserved") : null,
    data.limit && seen ? make("span", {}, `limit ${bytes(data.limit)}`) : null,
    far.length ? make("span", {}, `${far.join(" and ")}, far above`) : null);
  place.replaceChildren();
  looks(place);
  place.append(tools, make("div", { class: "g-chart" }, make("div", { class: "g-axis" }, ...labels), plot),
    ends, legend, said, blocks);
  draw();
}

// The panel: the controls that the kernel has, laid out and drawn in another way.

const PANEL = `
.gpumem-screen .g-head { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: flex-end; }
.gpumem-screen .g-state { flex: 1 1 300px; min-width: 0; min-height: 82px; }
.gpumem-screen [role=tablist] { display: flex; flex-wrap: wrap; gap: 4px; margin: 6px 0;
  border-bottom: 1px solid var(--line); }
.gpumem-screen [role=tab] { border-bottom: 0; border-radius: 4px 4px 0 0; }
.gpumem-screen [role=tabpanel] { max-height: 660px; overflow: auto; padding: 2px 4px; }
.gpumem-screen .g-two, .gpumem-screen .g-broad { display: grid; gap: 8px 20px; grid-template-columns: minmax(0, 1fr); }
@container (min-width: 700px) {
  .gpumem-screen .g-two { grid-template-columns: minmax(0, 5fr) minmax(0, 7fr); } }
@container (min-width: 1200px) {
  .gpumem-screen .g-broad { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); } }
@container (max-width: 699px) { .gpumem-screen [role=tabpanel] { max-height: 560px; } }
.gpumem-screen .g-tools:has(label) { align-items: flex-end; }
.gpumem-screen .g-tools label { flex: 1 1 170px; max-width: 320px; }
.gpumem-screen .g-tools label:has([type=number]) { flex: 0 1 110px; }
.gpumem-screen .g-tools select { min-width: 0; }
.gpumem-screen label { display: flex; flex-direction: column; min-width: 0; font-size: 12px; }
.gpumem-screen .g-tools input { width: 100%; }
.gpumem-screen textarea { width: 100%; font-family: ui-monospace, Menlo, Consolas, monospace; }
.gpumem-screen .g-rows th, .gpumem-screen .g-rows td { padding: 3px 8px 3px 0; text-align: right;
  border: 0; border-top: 1px solid var(--soft); font-weight: normal; white-space: nowrap; }
.gpumem-screen .g-rows .g-name { text-align: left; min-width: 110px; white-space: normal; overflow-wrap: anywhere; }
.gpumem-screen .g-rows thead button { border: 0; padding: 0; min-height: 24px; }
.gpumem-screen .g-rows tbody tr { cursor: pointer; }
.gpumem-screen .g-rows svg { width: 64px; height: 18px; display: block; margin-left: auto; }
.gpumem-screen .g-scroll { overflow: auto; max-height: 300px; }
.gpumem-screen .g-card { border: 1px solid var(--line); border-radius: 6px; padding: 4px 8px;
  margin: 4px 0; }
.gpumem-screen .g-card > button { border: 0; width: 100%; text-align: left; }
.gpumem-screen .g-spark { fill: #4477AA; }
.gpumem-screen [style*="max-width:920px"] { max-width: none !important; } /* as wide as charts */
.gpumem-screen .g-more { display: flex; flex-wrap: wrap; gap: 0 8px; font-size: 12px; }
.gpumem-screen .g-more svg { margin: 0; }
@container (max-width: 699px) { .gpumem-screen .g-wide { display: none; } }
@container (min-width: 700px) { .gpumem-screen .g-more { display: none; } }
@container (max-width: 420px) {
  .gpumem-screen .g-rows .g-name { min-width: 60px; }
  .gpumem-screen .g-tools label { max-width: none; flex-basis: 100%; } }
`;

/** Call `act` now and whenever one of the traits changes; gives what ends that. */
function follow(model, traits, act) {
  const events = traits.split(" ").map((name) => `change:${name}`).join(" ");
  model.on(events, act);
  act();
  return () => model.off(events, act);
}

/** A view of each kind of control that the kernel has: its element, the traits that it shows, and
 * what shows them. `put(trait, value)` tells the kernel what the user wants. */
const VIEWS = {
  HTMLModel: (model) => {
    const made = make("div");
    return [made, "value", () => { made.innerHTML = model.get("value"); }];
  },
  ButtonModel: (model) => {
    const made = make("button", { type: "button", title: model.get("tooltip"),
      onclick: () => model.send({ event: "click" }) });
    return [made, "description disabled", () => {
      made.textContent = model.get("description");
      made.disabled = model.get("disabled");
    }];
  },
  ToggleButtonModel: (model, put) => {
    const made = make("button", { type: "button",
      onclick: () => put("value", !model.get("value")) });
    return [made, "description value", () => {
      made.textContent = model.get("description");
      made.setAttribute("aria-pressed", model.get("value"));
    }];
  },
  DropdownModel: (model, put) => {
    const inner = make("select", { onchange: () => put("index", inner.selectedIndex) });
    return [make("label", {}, model.get("description"), inner), "_options_labels index", () => {
      inner.replaceChildren(...model.get("_options_labels").map((one) => make("option", {}, one)));
      inner.selectedIndex = model.get("index") ?? -1;
    }];
  },
  SelectMultipleModel: (model, put) => {
    const name = model.get("description");
    const made = make("div", { class: "g-tools", role: "group", "aria-label": name });
    const toggle = (place) => {
      const chosen = model.get("index");
      put("index", chosen.includes(place) ? chosen.filter((one) => one !== place)
        : [...chosen, place].sort((a, b) => a - b));
    };
    return [make("div", {}, name, made), "_options_labels index", () => {
      const focused = [...made.children].indexOf(document.activeElement);
      made.replaceChildren(...model.get("_options_labels").map((one, place) =>
        make("button", { type: "button", "aria-pressed": model.get("index").includes(place),
          onclick: () => toggle(place) }, one)));
      made.children[focused]?.focus();
    }];
  },
  BoundedIntTextModel: (model, put) => entry(model, put, "input", { type: "number", min: 1 },
    (text) => Math.max(model.get("min"), Math.min(model.get("max"), Math.round(Number(text)) || 1))),
  TextModel: (model, put) =>
    entry(model, put, "input", { type: "text", placeholder: model.get("placeholder") }, String),
  TextareaModel: (model, put) => entry(model, put, "textarea", { rows: model.get("rows") }, String),
};

function entry(model, put, name, properties, read) {
  const inner = make(name, { ...properties, onchange: () => put("value", read(inner.value)) });
  return [make("label", {}, model.get("description"), inner), "value", () => {
    inner.value = model.get("value");
  }];
}

/** The table of measured cells: sorted by any column, chosen by click or arrows. */
function history(model) {
  const sorted = { by: "number", down: true };
  const heads = [["number", "No"], ["name", "cell"], ["peak", "peak"], ["kept", "kept"],
    ["seconds", "time"], ["card", "card"]];
  const body = make("tbody", { onkeydown: step });
  const head = ([name, text]) =>
    make("button", { type: "button", onclick: () => sort(name) }, text);
  const buttons = heads.map(head);
  const cells = buttons.map((button, i) => make("th", { scope: "col",
    class: i === 1 ? "g-name" : i > 3 ? "g-wide" : "" }, button));
  cells[1].append(more(...heads.slice(4).map(head)));
  cells.splice(2, 0, make("th", { scope: "col", class: "g-wide" }, "course"));
  const caption = make("caption", {}, "Measured cells");
  const table = make("table", { class: "g-rows", role: "grid" }, caption,
    make("thead", {}, make("tr", {}, ...cells, make("th", { scope: "col" }, "compare"))), body);

  function sort(name) {
    sorted.down = sorted.by === name ? !sorted.down : name !== "name" && name !== "card";
    sorted.by = name;
    draw();
  }

  function step(event) {
    const row = event.target.closest("tr");
    const next = { ArrowDown: row.nextSibling, ArrowUp: row.previousSibling,
      Home: body.firstChild, End: body.lastChild }[event.key];
    if (event.target !== row) return;
    if (event.key === "Enter" || event.key === " ") model.send({ choose: Number(row.dataset.number) });
    else if (next) {
      next.focus();
      model.send({ choose: Number(next.dataset.number) });
    } else return;
    event.preventDefault();
  }

  function row(one) {
    const { chosen, other } = model.get("rows");
    const versus = make("button", { type: "button", "aria-pressed": one.number === other,
      "aria-label": `Compare with report ${one.number}`, onclick: (event) => {
        event.stopPropagation();
        model.send({ compare: one.number === other ? null : one.number });
      } }, "compare");
    const told = (of) => (of === null ? "unknown" : size(of));
    const made = make("tr", { tabindex: one.number === chosen ? 0 : -1,
      "aria-selected": one.number === chosen, "data-number": one.number,
      onclick: () => model.send({ choose: one.number }) },
    make("td", {}, one.number), make("th", { scope: "row", class: "g-name" },
      `${one.failed ? "✖ out of memory: " : ""}${one.name}`,
      more(spark(one.course), make("span", {}, one.time), make("span", {}, one.card))),
    make("td", { class: "g-wide" }, spark(one.course)), make("td", {}, told(one.peak)),
    make("td", {}, `${one.kept > 0 ? "+" : ""}${told(one.kept)}`), make("td", { class: "g-wide" }, one.time),
    make("td", { class: "g-wide" }, one.card),
    make("td", {}, one.number === chosen ? "chosen" : versus));
    return made;
  }

  function draw() {
    const focused = body.contains(document.activeElement)
      && document.activeElement.closest("tr").dataset.number;
    const rows = [...(model.get("rows").rows || [])];
    const order = (a, b) => (typeof a === "string" ? a.localeCompare(b) : (a ?? -1) - (b ?? -1));
    rows.sort((a, b) => order(a[sorted.by], b[sorted.by]) * (sorted.down ? -1 : 1));
    body.replaceChildren(...rows.map(row));
    caption.textContent = rows.length ? "Measured cells" : "No cell was measured yet.";
    heads.forEach(([name], i) => buttons[i].parentElement.setAttribute("aria-sort",
      name !== sorted.by ? "none" : sorted.down ? "descending" : "ascending"));
    if (body.firstChild && !body.querySelector("[tabindex='0']")) body.firstChild.tabIndex = 0;
    if (focused) body.querySelector(`[data-number='${focused}']`)?.focus();
  }

  return [make("div", { class: "g-scroll" }, table), draw];
}

/** What has no room beside a name stands below it. */
function more(...children) {
  return make("div", { class: "g-more" }, ...children);
}

function spark(course) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", `0 0 ${Math.max(course.length, 1)} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("class", "g-spark");
  path.setAttribute("d", `M0,100${course.map((size, i) => `V${100 - size}H${i + 1}`).join("")}V100Z`);
  svg.append(path);
  return svg;
}

/** Let the browser keep data as a file. */
function offer(name, data) {
  const url = URL.createObjectURL(new Blob([data]));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Insert a cell below the one that `place` is in, by JupyterLab's own commands, which a click on an
 * element that names one runs; whether that was done. In a notebook that is not trusted JupyterLab
 * asks the user first. */
async function insertCell(place, text) {
  const notebook = place.closest(".jp-Notebook");
  const active = () => notebook.querySelector(".jp-Cell.jp-mod-active");
  const run = async (command, given = {}) => {
    const link = make("button", { hidden: "", "data-commandlinker-command": command,
      "data-commandlinker-args": JSON.stringify({ activate: false, ...given }) });
    place.append(link);
    link.click();
    link.remove();
    do await pause(300); while (document.querySelector(".jp-Dialog"));
  };
  if (!notebook || !active()?.contains(place)) return false;
  await run("notebook:insert-cell-below");
  if (!active() || active().contains(place)) return false;
  await run("notebook:replace-selection", { text });
  return Boolean(active().querySelector(".cm-content")?.textContent.trim());
}

async function unpacked(view) {
  if (!view?.byteLength) return null;
  const stream = new Blob([view]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

/** The panel in `el`; see `panel/front.py`. */
async function render({ model, el }) {
  const ends = [];
  const models = {};
  await Promise.all(Object.entries(model.get("parts")).map(async ([name, id]) => {
    models[name] = await model.widget_manager.get_model(id);
  }));

  // Not `save_changes`: its messages wait for the kernel, and what is sent later overtakes them.
  const wish = (name, trait, value) => model.send({ set: [name, trait, value] });

  /** A view of a control that appears and goes as the kernel says. */
  function part(name) {
    const control = models[name];
    const put = (trait, value) => wish(name, trait, value);
    const [made, traits, draw] = VIEWS[control.get("_model_name")](control, put);
    ends.push(follow(control, traits, draw));
    const layout = control.get("layout");
    ends.push(follow(layout, "display", () => { made.hidden = layout.get("display") === "none"; }));
    return made;
  }

  const row = (...names) => make("div", { class: "g-tools" }, ...names.map(part));
  const two = (first, second) => make("div", { class: "g-two" },
    make("div", {}, ...first), make("div", {}, ...second));
  const broad = (first, second) => {
    const made = two(first, second);
    made.className = "g-broad";
    return made;
  };
  const [state, now, course] = [make("div", { class: "g-state" }), make("div"), make("div")];
  const [table, drawTable] = history(model);
  const cards = make("div");
  const advice = models["Advice.list"];

  let pressed = ""; // of several views of the panel, the one whose button was pressed acts
  const insert = row("Advice.insert", "Advice.explain", "Advice.ignore");
  insert.firstChild.addEventListener("click", () => { pressed = "insert"; });
  const download = make("button", { type: "button", onclick: () => {
    pressed = "download";
    model.send({ download: true });
  } }, "Download");
  const files = row("Export.what", "Export.form", "Export.name", "Export.save", "Export.clear",
    "Export.sure", "Export.keep");
  files.children[3].after(download);
  const answer = async (content, [data]) => {
    if (!(pressed in content)) return;
    pressed = "";
    if (data) offer(content.download, data);
    else model.send({ inserted: await insertCell(el, content.insert) });
  };
  model.on("msg:custom", answer);
  ends.push(() => model.off("msg:custom", answer));

  const detail = make("div", {}, part("Advice.card"), insert);

  /** The pieces of advice as cards; the one that is picked is open. */
  function drawCards() {
    const focused = cards.contains(document.activeElement) && document.activeElement.dataset.card;
    cards.replaceChildren(...advice.get("_options_labels").map((label, place) => {
      const open = advice.get("index") === place;
      const card = make("div", { class: "g-card" }, make("button", { type: "button",
        "aria-expanded": open, "data-card": place,
        onclick: () => wish("Advice.list", "index", place) }, label));
      if (open) card.append(detail);
      return card;
    }));
    if (!advice.get("_options_labels").length) cards.append(detail);
    if (focused) cards.querySelector(`[data-card='${focused}']`)?.focus();
  }

  const panels = {
    Now: [now],
    Cell: [part("Cell.course"), course, broad([part("Cell.source")], [part("Cell.blocks")])],
    History: [broad([table, row("History.first", "History.last", "History.all")],
      [part("History.difference")]),
    files],
    Advice: [row("Advice.measure", "Advice.cancel"),
      broad([cards], [part("Advice.answer"), part("Advice.code")])],
    Predict: [two([part("Predict.cards"), row("Predict.variable", "Predict.what"),
      part("Predict.code"), row("Predict.run", "Predict.cancel")], [part("Predict.result")])],
  };

  function look(name) {
    model.set("tab", name);
    model.save_changes();
  }

  const id = `gpumem-${Math.random().toString(36).slice(2)}`;
  const tabs = model.get("tabs").map((name) => make("button", { type: "button", role: "tab",
    id: `${id}-${name}`, "aria-controls": `${id}-${name}-panel`,
    onclick: () => look(name) }, name));
  const bodies = tabs.map((tab) => make("div", { role: "tabpanel", tabindex: 0,
    id: `${tab.id}-panel`, "aria-labelledby": tab.id }, ...panels[tab.textContent]));

  function turn(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = tabs.at((tabs.indexOf(event.target) + by) % tabs.length);
    next.focus();
    look(next.textContent);
    event.preventDefault();
  }

  el.append(make("style", {}, PANEL), make("div", { class: "g-head" }, state,
    part("Header.device"), part("Header.every"), part("Header.exit")), part("Header.style"),
  make("div", { "aria-live": "polite" }, part("Desk.message")),
  make("div", { role: "tablist", "aria-label": "The panel", onkeydown: turn }, ...tabs), ...bodies);
  looks(el);

  ends.push(
    keys(el),
    follow(model, "tab", () => tabs.forEach((tab, i) => {
      const open = tab.textContent === model.get("tab");
      tab.setAttribute("aria-selected", open);
      tab.tabIndex = open ? 0 : -1;
      bodies[i].hidden = !open;
    })),
    follow(model, "now", () => {
      state.innerHTML = model.get("now").head || "";
      now.innerHTML = model.get("now").body || "";
    }),
    follow(model, "rows", drawTable),
    follow(model, "course", async () => {
      const data = await unpacked(model.get("course"));
      if (data) timeline(course, data);
      else course.replaceChildren();
    }),
    follow(advice, "_options_labels index", drawCards),
  );
  return () => ends.forEach((end) => end());
}

export default { initialize: ({ model }) => model.send({ hello: true }), render };
