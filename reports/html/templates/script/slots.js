// The slot Gantt: a row a slot, a bar a request, in the colours of the picture; step by step where steps are at hand.
function slots(host) {
  const { from, to, window: chosen, unit } = data.slots;
  const runs = data.slots.runs.map((run) => {
    const start = summed(run.start, unit);
    const ends = [start];
    run.lengths.forEach((lengths, phase) => ends.push(lengths.map((length, at) => ends[phase][at] + length * unit)));
    return { ...run, edges: ends, steps: run.steps && summed(run.steps, unit), stalls: summed(run.stalls, unit),
             rows: run.slot.reduce((most, slot) => Math.max(most, slot + 1), 1) };
  });
  const title = 20;
  const high = (run) => Math.min(14 * run.rows, 230); // of a run's panel, whatever part of it is on the screen

  // The height of a row: as much as there is for the slots in use on the screen.
  function rowHeight(run, view) {
    run.used = 1;
    each(run, view, (at) => { if (run.slot[at] >= run.used) run.used = run.slot[at] + 1; });
    return clamp(high(run) / run.used, 0.5, 14);
  }

  // Visible stays: sorted by start, so those before the right edge, of which the ended are skipped.
  function each(run, view, draw) {
    const last = place(run.edges[0], view.right);
    for (let at = 0; at <= last; at++) if (run.edges[4][at] >= view.left) draw(at);
  }

  function paint(view, pen) {
    pen.clearRect(0, 0, view.width, paint.height(view));
    let above = 0;
    view.tops = runs.map((run, number) => {
      if (!shown[number]) return null;
      const row = rowHeight(run, view), mine = above + title, color = tint(data.runs[number]);
      pen.textAlign = "left";
      pen.textBaseline = "alphabetic";
      pen.fillStyle = ink("ink");
      pen.fillText(`${data.runs[number].label}: slots 0 to ${run.used - 1} of ${run.slots}`, view.pad, above + 14);
      pen.save();
      pen.beginPath();
      pen.rect(view.pad, mine, view.width - view.pad - 8, high(run));
      pen.clip();
      const bar = (at, phase, style) => {
        const left = view.x(run.edges[phase][at]), right = view.x(run.edges[phase + 1][at]);
        if (right <= left) return;
        pen.fillStyle = style;
        pen.fillRect(left, mine + run.slot[at] * row, Math.max(right - left - (phase === 2 ? 0.5 : 0), 0.5), row > 3 ? row - 1 : row * 0.75);
      };
      const colors = { ink: ink("ink"), held: ink("held") };
      each(run, view, (at) => bar(at, 2, color));
      stalled(pen, view, run, mine, row);
      each(run, view, (at) => { bar(at, 3, colors.held); bar(at, 1, colors.held); bar(at, 0, colors.ink); });
      pen.restore();
      above = mine + high(run) + 8;
      return [mine, row];
    });
  }
  paint.height = () => runs.reduce((sum, run, number) => sum + (shown[number] ? title + high(run) + 8 : 0), 24);

  // Decodes that stand still are pale: a veil over the whole panel, as every decode waits for the same step.
  function stalled(pen, view, run, above, row) {
    pen.globalAlpha = 0.62;
    pen.fillStyle = ink("card");
    let at = Math.max(place(run.stalls, view.left), 0);
    for (at -= at % 2; at < run.stalls.length && run.stalls[at] < view.right; at += 2) {
      const left = view.x(run.stalls[at]);
      pen.fillRect(left, above, view.x(run.stalls[at + 1]) - left, row * run.used);
    }
    pen.globalAlpha = 1;
  }

  const names = ["prefill", "padding", "decode", "held"];
  function counts(run, time, view) {
    const found = [0, 0, 0, 0];
    each(run, view, (at) => {
      for (let phase = 0; phase < 4; phase++) if (run.edges[phase][at] <= time && time < run.edges[phase + 1][at]) found[phase]++;
    });
    return names.map((name, phase) => found[phase] && `${found[phase]} ${name}`).filter(Boolean).join(", ") || "idle";
  }

  function under(view) { // the request at the pointer
    if (view.row === undefined || !view.tops) return "";
    const number = view.tops.findIndex((top, at) => top && view.row >= top[0] && view.row < top[0] + top[1] * runs[at].used);
    if (number < 0) return "";
    const run = runs[number], slot = Math.floor((view.row - view.tops[number][0]) / view.tops[number][1]);
    let found = "";
    each(run, view, (at) => {
      if (run.slot[at] !== slot || run.edges[0][at] > view.cursor || run.edges[4][at] <= view.cursor) return;
      const id = run.id ? run.id[at] : run.row[at];
      found = ` Slot ${slot}: request ${id}, ${short(run.input[at])} prompt and ${short(run.output[at])} output tokens.`;
    });
    return found;
  }

  function read(view) {
    const texts = runs.map((run, number) => shown[number] && `${data.runs[number].label} ${counts(run, view.cursor, view)}`);
    return `${texts.filter(Boolean).join("; ")}.${under(view)}`;
  }

  function jump(time, direction) { // the nearest end of a step of any run that is shown
    const near = runs.map((run, number) => {
      if (!shown[number] || !run.steps) return null;
      const at = direction > 0 ? place(run.steps, time + unit / 2) + 1 : place(run.steps, time - unit / 2);
      return at >= 0 && at < run.steps.length ? run.steps[at] : null;
    }).filter((step) => step !== null);
    return near.length ? (direction > 0 ? Math.min(...near) : Math.max(...near)) : null;
  }
  return new View(host, { from, to, paint, read, jump, start: chosen });
}
if (explorer("slots") && data.slots.runs.some((run) => run.slot.length)) slots(explorer("slots"));
