// The timeline: means as lines, the largest value of each stretch as a pale area, one panel below the other.
function timeline(host) {
  const { end, panels } = data.timeline;
  const low = 92, gap = 26;

  function top(panel, view) { // of what is on the screen, so that zooming in shows small values too
    let most = 0;
    panel.high.forEach((values, run) => {
      if (!shown[run]) return;
      const [first, last] = range(values, view);
      for (let at = first; at <= last; at++) if (values[at] > most) most = values[at];
    });
    if (panel.limit && panel.limit <= 4 * most) most = Math.max(most, panel.limit);
    return round(most) || 1;
  }
  const digits = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];
  function round(most) { // up to a number that reads well
    const power = Math.pow(10, Math.floor(Math.log10(most || 1)));
    return most && power * digits.find((digit) => digit * power >= most);
  }

  // A value's height from 0 to 1. Where one run dwarfs the others: even up to them, by its logarithm above.
  const split = (panel, most) => panel.linear && most > 2 * panel.linear;
  function height(panel, most, value) {
    if (!split(panel, most)) return value / most;
    if (value <= panel.linear) return (0.5 * value) / panel.linear;
    return 0.5 + (0.5 * Math.log(value / panel.linear)) / Math.log(most / panel.linear);
  }
  const range = (values, view) => [view.left, view.right].map((time, side) =>
    clamp(Math.floor((time / end) * values.length) + (side ? 1 : -1), 0, values.length - 1));

  function line(pen, view, values, y) {
    const [first, last] = range(values, view);
    let down = false;
    for (let at = first; at <= last; at++) {
      if (values[at] === null) { down = false; continue; }
      const x = view.x(((at + 0.5) / values.length) * end);
      if (down) pen.lineTo(x, y(values[at])); else pen.moveTo(x, y(values[at]));
      down = true;
    }
  }

  function paint(view, pen) {
    pen.clearRect(0, 0, view.width, paint.height(view));
    panels.forEach((panel, index) => {
      const above = index * (low + gap) + 18, most = top(panel, view);
      const y = (value) => above + low * (1 - height(panel, most, value));
      const ticks = [0, split(panel, most) ? panel.linear : most / 2, most];
      pen.textBaseline = "alphabetic";
      pen.textAlign = "left";
      pen.fillStyle = ink("ink");
      pen.fillText(panel.title + (split(panel, most) ? `, logarithmic above ${short(panel.linear)}` : ""), view.pad, above - 5);
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillStyle = ink("muted");
      ticks.forEach((value) => pen.fillText(short(value), view.pad - 6, y(value)));
      pen.fillStyle = ink("grid");
      ticks.forEach((value) => pen.fillRect(view.pad, y(value), view.width - view.pad - 8, 1));
      pen.save();
      pen.beginPath();
      pen.rect(view.pad, above - 1, view.width - view.pad - 8, low + 3);
      pen.clip();
      data.runs.forEach((run, number) => {
        if (!shown[number]) return;
        pen.strokeStyle = tint(run);
        [["high", 0.35, 1], ["mean", 1, 1.8]].forEach(([which, alpha, width]) => {
          pen.globalAlpha = alpha;
          pen.lineWidth = width;
          pen.beginPath();
          line(pen, view, panel[which][number], y);
          pen.stroke();
        });
        pen.globalAlpha = 1;
      });
      pen.restore();
      if (panel.limit && panel.limit <= most) {
        pen.fillStyle = ink("ink");
        for (let x = view.pad; x < view.width - 8; x += 6) pen.fillRect(x, y(panel.limit), 3, 1);
      }
    });
  }
  paint.height = () => panels.length * (low + gap) + 24;

  function read(view) {
    const texts = data.runs.map((run, number) => shown[number] && `${run.label} ` + panels.map((panel) => {
      const values = panel.mean[number];
      return `${panel.title.replace(/ \(.*/, "")} ${short(values[clamp(Math.floor((view.cursor / end) * values.length), 0, values.length - 1)])}`;
    }).join(", "));
    return texts.filter(Boolean).join("; ");
  }
  return new View(host, { from: 0, to: end, paint, read });
}
if (explorer("timeline") && data.timeline.panels.length) timeline(explorer("timeline"));
