// Draws the timelines of a report with uPlot, sorts its tables, and opens rows of its modules. Texts are only ever set as text, never as HTML.
"use strict";

(function () {
  const MIB = 2 ** 20;
  const HEIGHT = 320;
  const LEAST = 4; // events that can still be zoomed to
  const SIZE = 0, PART = 1, OPERATOR = 2, STAGE = 3, PLACE = 4, LIBRARY = 5, MODULE = 6; // columns of a kind of block

  const mib = (bytes) => (bytes / MIB).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const size = (bytes) => (bytes < MIB / 10 ? bytes.toLocaleString("en-US") + " B" : mib(bytes) + " MiB");
  const whole = (number) => number.toLocaleString("en-US");
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // --- the columns of a track -------------------------------------------------------------------

  // Follows every event: which block it is about, when blocks are born and freed, and the bytes of each part after it.
  function follow(track, parts) {
    const count = track.order.length;
    const blockOf = new Int32Array(count), stageOf = new Int32Array(count);
    const born = new Int32Array(track.blocks.length), gone = new Int32Array(track.blocks.length).fill(count);
    const heights = parts.map(() => new Float64Array(count));
    const reserved = new Float64Array(count), allocated = new Float64Array(count);
    const partAt = track.kinds.map((kind) => parts.findIndex((part) => part.name === track.names[kind[PART]]));
    const now = parts.map(() => 0);
    let made = 0, stage = -1, total = 0, next = 0, segments = 0;
    for (let event = 0; event < count; event++) {
      const back = track.order[event];
      const block = back === 0 ? made++ : made - back;
      const kind = track.kinds[track.blocks[block]];
      const change = back === 0 ? kind[SIZE] : -kind[SIZE];
      if (back === 0) {
        born[block] = event;
        stage = kind[STAGE];
      } else {
        gone[block] = event;
      }
      blockOf[event] = block;
      stageOf[event] = stage;
      now[partAt[track.blocks[block]]] += change;
      total += change;
      for (; next < track.reserved.length && track.reserved[next] <= event; next += 2) segments = track.reserved[next + 1];
      for (let part = 0; part < parts.length; part++) heights[part][event] = now[part];
      reserved[event] = segments;
      allocated[event] = total;
    }
    return { count, blockOf, stageOf, born, gone, heights, reserved, allocated, partAt };
  }

  // A long run has no blocks, only the highest points of each few events.
  function highest(track) {
    const count = track.points.length / 2;
    const pick = (first) => Float64Array.from({ length: count }, (_, at) => track.points[2 * at + first]);
    const allocated = pick(0);
    return { count, heights: [allocated], allocated, reserved: pick(1) };
  }

  // The event of each column of the view at which most is allocated: all events where there is room for them.
  function columns(found, first, last, width) {
    const chosen = [];
    const per = Math.max(1, (last - first) / Math.max(1, width));
    for (let column = 0; first + column * per < last; column++) {
      const from = Math.floor(first + column * per), to = Math.min(last, Math.floor(first + (column + 1) * per));
      let best = from, segments = found.reserved[from];
      for (let event = from + 1; event < to; event++) {
        if (found.allocated[event] > found.allocated[best]) best = event;
        if (found.reserved[event] > segments) segments = found.reserved[event];
      }
      chosen.push([best, segments]);
    }
    return chosen;
  }

  // --- one timeline -----------------------------------------------------------------------------

  function draw(chart) {
    const { track, parts, limit, top, failed } = JSON.parse(document.getElementById(chart.dataset.track).textContent);
    const long = track.points.length > 0;
    const found = long ? highest(track) : follow(track, parts);
    const layers = long ? [{ name: "allocated", colour: "#56B4E9" }] : parts;
    const at = Math.min(found.count - 1, Math.max(0, long ? Math.floor((track.at - 1) / track.stride) : track.at - 1));
    const readout = chart.parentNode.querySelector(".readout"), hint = readout.textContent;
    const life = document.createElement("div");
    life.className = "life";
    life.hidden = true;
    let view = [0, found.count], plot = null;
    // The state after event n is drawn from n to n + 1, so the mark is in the middle of it.
    const mark = at + 0.5;
    chart.dataset.mark = mark;

    const colour = (layer) => (layer.colour === "#000000" ? style("--graphs") : layer.colour);
    const above = top * 1.15 < limit ? top * 1.15 : limit * 1.06;

    function data() {
      const chosen = columns(found, view[0], view[1], plot ? plot.bbox.width / devicePixelRatio : chart.clientWidth);
      const heights = layers.map(() => []);
      for (const [event] of chosen) {
        let sum = 0;
        for (let layer = 0; layer < layers.length; layer++) heights[layer].push((sum += found.heights[layer][event]) / MIB);
      }
      const events = chosen.map(([event]) => event);
      // the last state lasts until the end of the view
      if (events.length) {
        events.push(view[1]);
        for (const column of heights) column.push(column[column.length - 1]);
        chosen.push([view[1], chosen[chosen.length - 1][1]]);
      }
      return [events, ...heights.reverse(), chosen.map(([, segments]) => segments / MIB)];
    }

    function show(first, last) {
      const width = Math.max(Math.min(LEAST, found.count), Math.min(found.count, last - first));
      first = Math.max(0, Math.min(found.count - width, first));
      view = [Math.floor(first), Math.ceil(first + width)];
      plot.setData(data(), false);
      plot.setScale("x", { min: view[0], max: view[1] });
      chart.dataset.view = view.join(" ");
    }
    const zoom = (factor, around) => {
      const width = (view[1] - view[0]) * factor;
      show(around - (around - view[0]) * factor, around - (around - view[0]) * factor + width);
    };
    const middle = () => (view[0] + view[1]) / 2;
    const move = (part) => show(view[0] + part * (view[1] - view[0]), view[1] + part * (view[1] - view[0]));
    const reset = () => show(0, found.count);

    // Stages as a ribbon above the figure, and as a tint behind it.
    function bands(u) {
      if (long) return;
      const { left, top: upper, width, height } = u.bbox, ratio = devicePixelRatio, ribbon = 16 * ratio;
      const context = u.ctx;
      context.save();
      context.font = `${11 * ratio}px system-ui, sans-serif`;
      context.textBaseline = "middle";
      context.textAlign = "left"; // uPlot leaves its own
      for (let event = view[0]; event < view[1]; ) {
        const stage = found.stageOf[event];
        let end = event + 1;
        while (end < view[1] && found.stageOf[end] === stage) end++;
        const from = Math.max(u.valToPos(event, "x", true), left), to = Math.min(u.valToPos(end, "x", true), left + width);
        const name = track.names[stage] || "";
        const kind = { forward: "--forward", backward: "--backward", "optimizer step": "--step" }[name] || "--other";
        context.fillStyle = style(kind);
        context.fillRect(from, upper, to - from, height);
        context.fillRect(from, upper - ribbon - 2 * ratio, to - from, ribbon);
        if (context.measureText(name).width + 6 * ratio < to - from) {
          context.fillStyle = style("--ink");
          context.fillText(name, from + 3 * ratio, upper - ribbon / 2 - 2 * ratio);
        }
        event = end;
      }
      context.restore();
    }

    // The GPU's limit, if it is inside the figure, and the moment that the page describes.
    function marks(u) {
      const { left, top: upper, width, height } = u.bbox, context = u.ctx, ratio = devicePixelRatio;
      context.save();
      context.beginPath();
      context.rect(left, upper, width, height);
      context.clip();
      context.setLineDash([5 * ratio, 4 * ratio]);
      context.lineWidth = ratio;
      context.strokeStyle = context.fillStyle = style("--limit");
      context.font = `${11 * ratio}px system-ui, sans-serif`;
      context.textBaseline = "middle";
      let highest = upper;
      if (limit <= above) {
        highest = u.valToPos(limit / MIB, "y", true);
        line(context, left, highest, left + width, highest);
        context.textAlign = "left";
        context.fillText("all of the GPU", left + 6 * ratio, highest - 7 * ratio);
      }
      const x = u.valToPos(mark, "x", true);
      line(context, x, upper, x, upper + height);
      const name = failed ? "memory ran out" : "peak";
      const room = left + width - x > context.measureText(name).width + 12 * ratio;
      context.textAlign = room ? "left" : "right";
      context.fillText(name, x + (room ? 5 : -5) * ratio, highest + 10 * ratio);
      context.restore();
    }

    function line(context, ...[x, y, toX, toY]) {
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(toX, toY);
      context.stroke();
    }

    // --- what is under the pointer

    function pointed(u) {
      life.hidden = true;
      if (u.cursor.left < 0 || u.cursor.left == null) {
        readout.textContent = hint;
        return;
      }
      const x = Math.max(0, Math.min(found.count - 1, Math.floor(u.posToVal(u.cursor.left, "x"))));
      const drawn = u.data[0], next = drawn.findIndex((event) => event > x);
      const event = Math.min(found.count - 1, drawn[Math.max(0, (next < 0 ? drawn.length : next) - 1)]);
      if (long) {
        const first = event * track.stride;
        say([`Events ${whole(first + 1)} to ${whole(Math.min(track.events, first + track.stride))} of ${whole(track.events)}`],
          [`at most ${size(found.allocated[event])} allocated, ${size(found.reserved[event])} reserved`]);
        return;
      }
      const block = under(event, u.posToVal(u.cursor.top, "y") * MIB);
      const own = found.blockOf[event], verb = found.born[own] === event ? "allocates" : "frees";
      const rows = [
        [`Event ${whole(event + 1)} of ${whole(found.count)}`, `: ${verb} ${describe(own)}`],
        ["Then", `: ${size(found.allocated[event])} allocated, ${size(found.reserved[event])} reserved`],
      ];
      if (block >= 0) {
        const until = found.gone[block] < found.count ? ` to ${whole(found.gone[block] + 1)}` : " to the end";
        rows.push(["Under the pointer", `: ${describe(block)}; alive from event ${whole(found.born[block] + 1)}${until}`]);
        const left = Math.max(0, u.valToPos(found.born[block], "x")), right = u.valToPos(found.gone[block], "x");
        life.hidden = false;
        life.style.left = `${left}px`;
        life.style.width = `${Math.max(2, Math.min(u.over.clientWidth, right) - left)}px`;
        life.style.top = `${u.cursor.top}px`;
      }
      say(...rows);
    }

    // The block that a height in bytes belongs to: parts are stacked in their order, and in them blocks by their age.
    function under(event, height) {
      for (let part = 0; part < parts.length; part++) {
        if (height > found.heights[part][event]) {
          height -= found.heights[part][event];
          continue;
        }
        for (let block = 0; block < track.blocks.length && found.born[block] <= event; block++) {
          if (found.gone[block] <= event || found.partAt[track.blocks[block]] !== part) continue;
          height -= track.kinds[track.blocks[block]][SIZE];
          if (height <= 0) return block;
        }
      }
      return -1;
    }

    function describe(block) {
      const kind = track.kinds[track.blocks[block]], text = (column) => track.names[kind[column]];
      const texts = [`${size(kind[SIZE])}, ${text(PART)}`, `${text(OPERATOR)} in ${text(STAGE)}`, text(MODULE)];
      return [...texts, text(LIBRARY), text(PLACE)].filter(Boolean).join(" · ");
    }

    function say(...rows) {
      readout.replaceChildren();
      for (const [title, text] of rows) {
        const row = document.createElement("div"), name = document.createElement("b");
        name.textContent = title;
        row.append(name, text || "");
        readout.append(row);
      }
    }

    // --- uPlot

    const axis = { stroke: () => style("--quiet"), grid: { stroke: () => style("--line"), width: 1 }, ticks: { show: false } };
    const stepped = uPlot.paths.stepped({ align: 1 });
    plot = new uPlot(
      {
        width: chart.clientWidth,
        height: HEIGHT,
        padding: [24, 10, 0, 0],
        legend: { show: false },
        scales: { x: { time: false, range: () => view }, y: { range: () => [0, above / MIB] } },
        axes: [
          { ...axis, size: 30, values: (_, ticks) => ticks.map((tick) => whole(tick * (long ? track.stride : 1))) },
          { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en-US")) },
        ],
        series: [
          {},
          ...[...layers].reverse().map((layer) => ({ paths: stepped, fill: () => colour(layer), width: 0, points: { show: false } })),
          { paths: stepped, stroke: () => style("--reserved"), width: 1.5, points: { show: false } },
        ],
        cursor: {
          points: { show: false },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => reset() },
        },
        hooks: {
          drawClear: [bands],
          draw: [marks],
          setCursor: [pointed],
          setSelect: [
            (u) => {
              if (u.select.width < 4) return;
              show(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
        },
      },
      data(),
      chart,
    );
    plot.over.append(life);
    show(0, found.count);

    plot.over.addEventListener("wheel", (event) => {
      event.preventDefault();
      zoom(event.deltaY < 0 ? 0.7 : 1 / 0.7, plot.posToVal(event.offsetX, "x"));
    }, { passive: false });
    const actions = {
      in: () => zoom(0.5, middle()), out: () => zoom(2, middle()), left: () => move(-0.4), right: () => move(0.4), reset,
    };
    for (const button of chart.parentNode.querySelectorAll("[data-zoom]")) button.onclick = actions[button.dataset.zoom];
    const keys = { "+": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "reset" };
    chart.addEventListener("keydown", (event) => {
      if (!(event.key in keys) || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      actions[keys[event.key]]();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw());
    return () => {
      plot.setSize({ width: chart.clientWidth, height: HEIGHT });
      show(...view);
    };
  }

  // A chart in a closed section has no width yet. It is drawn when the section is opened.
  function whenSeen(chart) {
    let resize = null, width = 0;
    new ResizeObserver(() => {
      if (!chart.clientWidth || chart.clientWidth === width) return;
      width = chart.clientWidth;
      if (resize) resize();
      else resize = draw(chart);
    }).observe(chart);
  }

  // --- tables that are sorted by a click on a column's head ------------------------------------------

  function key(row, column) {
    const cell = row.cells[column], figure = cell.querySelector("data");
    return figure ? Number(figure.value) : cell.textContent;
  }

  // Rows by a column. Equal ones keep their order.
  function sorted(rows, column, down) {
    const order = ([a], [b]) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
    const keyed = rows.map((row) => [key(row, column), row]);
    return keyed.sort((one, other) => (down ? -1 : 1) * order(one, other)).map(([, row]) => row);
  }

  // Turns heads into buttons. `sort(column, down)` is called after a click.
  function heads(table, sort) {
    const cells = [...table.tHead.rows[0].cells];
    cells.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      head.onclick = () => {
        const falls = head.getAttribute("aria-sort") !== "descending" && head.classList.contains("number");
        const down = falls || head.getAttribute("aria-sort") === "ascending";
        for (const other of cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        sort(column, down);
      };
    });
    return cells;
  }

  function sortable(table) {
    heads(table, (column, down) => table.tBodies[0].append(...sorted([...table.tBodies[0].rows], column, down)));
  }

  // A table whose rows contain those below them that are deeper. Rows are sorted among those of the same parent, and the
  // parent's own bytes come first. "alone" shows the rows that contain no other, without the tree.
  function tree(table) {
    const rows = [...table.tBodies[0].rows], depth = (row) => Number(row.dataset.depth);
    const inside = new Map([[null, []]]), open = new Set(), above = [];
    for (const row of rows) {
      while (above.length && depth(above[above.length - 1]) >= depth(row)) above.pop();
      inside.get(above.length ? above[above.length - 1] : null).push(row);
      inside.set(row, []);
      above.push(row);
    }
    const choice = table.closest("section").querySelector("select.depth");
    let column = 1, down = true;

    function* shown(parent) {
      const own = inside.get(parent).filter((row) => row.className === "own");
      const others = inside.get(parent).filter((row) => row.className !== "own");
      for (const row of [...own, ...sorted(others, column, down)]) {
        yield row;
        if (open.has(row)) yield* shown(row);
      }
    }

    function render() {
      const alone = choice.value === "alone";
      table.classList.toggle("alone", alone);
      const leaves = rows.filter((row) => row.className !== "parent");
      table.tBodies[0].replaceChildren(...(alone ? sorted(leaves, column, down) : shown(null)));
      for (const row of rows) row.querySelector(".fold")?.setAttribute("aria-expanded", open.has(row));
    }

    for (const row of rows.filter((row) => row.className === "parent")) {
      const fold = document.createElement("button");
      fold.type = "button";
      fold.className = "fold";
      fold.setAttribute("aria-label", `modules inside ${row.cells[0].textContent}`);
      fold.onclick = () => {
        if (!open.delete(row)) open.add(row);
        render();
      };
      row.cells[0].prepend(fold);
    }
    choice.onchange = () => {
      open.clear();
      for (const row of rows) if (depth(row) < Number(choice.value)) open.add(row);
      render();
    };
    const [, first] = heads(table, (...chosen) => {
      [column, down] = chosen;
      render();
    });
    first.setAttribute("aria-sort", "descending");
    choice.onchange();
  }

  document.querySelectorAll("[data-track]").forEach(whenSeen);
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("table.tree").forEach(tree);
})();
