// Draws the plots from the data in the page. All text is written to a canvas or to textContent, never parsed as markup.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";
  const figuresOnPage = [];  // each with clear(), and fit() for a new width

  const seconds = (value) => {
    if (value === null || value === undefined) return "–";
    if (value === 0) return "0";
    if (value < 1e-3) return `${+(value * 1e6).toPrecision(3)} µs`;
    if (value < 1) return `${+(value * 1e3).toPrecision(3)} ms`;
    if (value < 120) return `${+value.toPrecision(3)} s`;
    return value < 7200 ? `${+(value / 60).toPrecision(3)} min` : `${+(value / 3600).toPrecision(3)} h`;
  };
  const plain = (unit) => (value) => (value === null || value === undefined ? "–" : `${+value.toPrecision(4)}${unit}`);

  // -- plots over batches or time -----------------------------------------------------------------------------

  const axis = (format) => ({
    stroke: colour("soft"), font: FONT, size: 66, ticks: { stroke: colour("line"), width: 1 },
    grid: { stroke: colour("line"), width: 1 }, values: (_, values) => values.map(format),
  });

  const line = (label, name, format, more) => ({ label, stroke: colour(name), width: 1.4, points: { show: false }, value: (_, v) => format(v), ...more });

  function plot(id, data, series, { x, y, height = 190, top, hooks = {}, bands = [] }) {
    const container = document.getElementById(id);
    if (!container) return;
    const options = {
      width: container.clientWidth, height, bands, hooks, series: [{ label: x.label, value: (_, v) => x.format(v) }, ...series],
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, top ? Math.max(top, high) : (high || 1) * 1.06] } },
      axes: [{ ...axis(x.format), size: 34, space: 70, ...(x.ticks ? { incrs: x.ticks } : {}) }, axis(y)], cursor: { drag: { x: true, y: false } },
    };
    const chart = new uPlot(options, data, container);
    figuresOnPage.push({ clear: () => chart.destroy(), fit: () => chart.setSize({ width: container.clientWidth, height }) });
  }

  const batches = { label: "batch", format: (v) => (v === null || v === undefined ? "–" : `${Math.round(v)}`) };
  const time = { label: "time", format: seconds, ticks: [1e-3, 1e-2, 0.1, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 432000, 2592000] };

  function strip({ plot: { x, series }, marks }) {
    const path = x.length <= 600 ? { paths: uPlot.paths.stepped({ align: 1 }) } : {};
    const drawMarks = (u) => {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.fillStyle = colour("accent");
      const size = 3 * devicePixelRatio;
      for (const mark of marks) {
        const centre = u.valToPos(mark + 0.5, "x", true);
        if (centre < bbox.left || centre > bbox.left + bbox.width) continue;
        ctx.beginPath();
        ctx.moveTo(centre - size, bbox.top - 2 * size);
        ctx.lineTo(centre + size, bbox.top - 2 * size);
        ctx.lineTo(centre, bbox.top);
        ctx.fill();
      }
      ctx.restore();
    };
    const dense = "mean" in series;  // each column shows many batches: the extremes are pale, the mean is strong
    const shown = [series.total, series.step, ...(dense ? [series.mean] : [])];
    plot("strip", [x, ...shown], [
      line("step and wait", dense ? "accent-pale" : "accent", seconds, path),
      line("step alone", "step", seconds, { ...path, fill: colour("step-fill") }),
      ...(dense ? [line("mean, with wait", "accent", seconds)] : []),
    ], { x: batches, y: seconds, height: 230, hooks: { draw: [drawMarks] }, bands: [{ series: [1, 2], fill: colour(dense ? "accent-pale" : "accent-fill") }] });
  }

  function lines(id, { x, series }, format, styles, options) {
    const names = Object.keys(series);
    plot(id, [x, ...names.map((name) => series[name])],
      names.map((name) => line(name, styles[name][0], format, { dash: styles[name][1] })), options);
  }

  function workers({ x, curve, measured }) {
    const format = plain("");
    plot("workers", [x, curve, measured], [
      line("model", "step", format, { spanGaps: true, width: 2 }),
      line("measured", "accent", format, { paths: () => null, points: { show: true, size: 9, fill: colour("accent") } }),
    ], { x: { label: "workers", format: batches.format }, y: format });
  }

  // -- the timeline around the longest wait: the loop above, its workers below --------------------------------

  const LEFT = 92, TOP = 26, LOOP = 26, ROW = 15, GAP = 3, FOOT = 24;

  function timeline(data) {
    const canvas = document.getElementById("timeline");
    if (!canvas) return;
    const height = TOP + LOOP + 10 + data.workers.length * ROW + FOOT;
    let boxes = [];
    const draw = () => {
      const width = canvas.clientWidth, ratio = devicePixelRatio || 1, ctx = canvas.getContext("2d");
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      ctx.scale(ratio, ratio);
      ctx.font = FONT;
      ctx.textBaseline = "middle";
      const scale = (width - LEFT - 8) / (data.seconds || 1);
      boxes = [];
      const box = (name, start, length, y, tall, text) => {
        const from = Math.max(0, start), to = Math.min(data.seconds, start + length);
        if (to <= from) return;
        ctx.fillStyle = colour(name);
        const x = LEFT + from * scale, wide = Math.max(0.6, (to - from) * scale - (text ? 0.7 : 0));
        ctx.fillRect(x, y, wide, tall);
        if (text) boxes.push({ x, y, wide: Math.max(wide, 2), tall, text });
      };
      const label = (text, y) => { ctx.fillStyle = colour("soft"); ctx.textAlign = "right"; ctx.fillText(text, LEFT - 10, y, LEFT - 12); };
      drawLoop(box, label);
      drawWorkers(box, label);
      drawPeriods(ctx, scale);
      drawTimes(ctx, scale, width);
    };
    const drawLoop = (box, label) => {
      label("loop", TOP + LOOP / 2);
      for (const [start, wait, step, batch] of data.loop) {
        box("accent", start, wait, TOP, LOOP, `batch ${batch}: waited ${seconds(wait)}`);
        box("step", start + wait, step, TOP, LOOP, `batch ${batch}: step ${seconds(step)}`);
      }
    };
    const drawWorkers = (box, label) => data.workers.forEach(([name, fetches], row) => {
      const y = TOP + LOOP + 10 + row * ROW, tall = ROW - GAP;
      label(name, y + tall / 2);
      for (const [start, length, collate, batch] of fetches) {
        box("cold", start, length, y, tall, `${name}: batch ${batch} in ${seconds(length)}, collate ${seconds(collate)}`);
        box("cold-deep", start + length - collate, collate, y, tall, "");
      }
    });
    const drawPeriods = (ctx, scale) => {
      if (!data.period) return;
      const slow = data.loop.filter((row) => row[4]).map((row) => ({ x: LEFT + (row[0] + row[1]) * scale, batch: row[3] }));
      ctx.strokeStyle = ctx.fillStyle = colour("accent");
      ctx.textAlign = "center";
      slow.slice(1).forEach((end, index) => {
        const begin = slow[index], text = `${end.batch - begin.batch} batches`;
        ctx.beginPath();
        ctx.moveTo(begin.x + 1, TOP - 4); ctx.lineTo(begin.x + 1, TOP - 9);
        ctx.lineTo(end.x - 1, TOP - 9); ctx.lineTo(end.x - 1, TOP - 4);
        ctx.stroke();
        if (ctx.measureText(text).width < end.x - begin.x) ctx.fillText(text, (begin.x + end.x) / 2, TOP - 18);
      });
    };
    const drawTimes = (ctx, scale, width) => {
      const rough = data.seconds / Math.max(2, Math.floor((width - LEFT) / 110)), power = 10 ** Math.floor(Math.log10(rough || 1));
      const tick = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
      ctx.fillStyle = colour("soft"); ctx.strokeStyle = colour("line"); ctx.textAlign = "center";
      for (let time = 0; time <= data.seconds * 1.0001; time += tick) {
        const x = Math.round(LEFT + time * scale) + 0.5;
        ctx.beginPath(); ctx.moveTo(x, height - FOOT); ctx.lineTo(x, height - FOOT + 5); ctx.stroke();
        const text = time ? `+${seconds(+time.toPrecision(6))}` : "0";
        if (x + ctx.measureText(text).width / 2 <= width) ctx.fillText(text, x, height - 9);
      }
    };
    const caption = document.getElementById("timeline-caption");
    canvas.onmousemove = (event) => {
      const { offsetX: x, offsetY: y } = event;
      const hit = boxes.findLast((b) => x >= b.x && x <= b.x + b.wide && y >= b.y && y <= b.y + b.tall);
      caption.textContent = hit ? hit.text : "";
    };
    canvas.onmouseleave = () => { caption.textContent = ""; };
    draw();
    figuresOnPage.push({ clear: () => {}, fit: draw });
  }

  // -- the whole page -----------------------------------------------------------------------------------------

  function drawAll() {
    figuresOnPage.splice(0).forEach((each) => each.clear());
    const percent = plain(" %"), rate = plain(" MB/s"), dashed = [4, 4];
    const readyStyles = { ready: [figures.ready && figures.ready.series.mean ? "accent-pale" : "accent"], outstanding: ["step", dashed], mean: ["accent"] };
    if (figures.strip) strip(figures.strip);
    if (figures.timeline) timeline(figures.timeline);
    if (figures.ready) lines("ready", figures.ready, plain(""), readyStyles, { x: batches, y: plain("") });
    if (figures.workers) workers(figures.workers);
    if (figures.utilisation) lines("utilisation", figures.utilisation, percent, { GPU: ["accent"], CPU: ["cold"], disk: ["soft", dashed] }, { x: time, y: percent, top: 100 });
    if (figures.throughput) lines("throughput", figures.throughput, rate, { disk: ["cold"], network: ["soft", dashed] }, { x: time, y: plain("") });
    document.documentElement.dataset.drawn = "yes";
  }

  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let pendingFrame = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(pendingFrame);
    pendingFrame = requestAnimationFrame(() => figuresOnPage.forEach((each) => each.fit()));
  });
})();
