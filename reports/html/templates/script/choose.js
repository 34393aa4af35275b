// Which runs are shown, everywhere on the page, and the latencies at the percentile that was chosen.
const curves = data.curves || { percents: [], quantities: {} };
const { percents } = curves;
let percentile = 99;

// A run's latency at a percentile, between the points of its curve; null where it has too few samples.
function latencyAt(name, run, percent) {
  const quantity = curves.quantities[name];
  const ms = quantity.ms[run];
  if (!ms || percent > 100 * (1 - 1 / quantity.samples[run]) + 1e-9) return null;
  const at = clamp(place(percents, percent), 0, percents.length - 2);
  const share = (percent - percents[at]) / (percents[at + 1] - percents[at]);
  return ms[at] + (ms[at + 1] - ms[at]) * share;
}

function fill() {
  shown.forEach((yes, run) => all(`.run-${run}`).forEach((part) => part.classList.toggle("off", !yes)));
  all("#controls .at").forEach((part) => { part.textContent = `p${percentile}`; });
  all("#controls td[data-of]").forEach((cell) => {
    cell.textContent = latency(latencyAt(cell.dataset.quantity, Number(cell.dataset.of), percentile));
  });
}

const panel = document.getElementById("controls");
if (panel) {
  all("fieldset", panel).forEach((each) => { each.hidden = false; });
  panel.addEventListener("change", (event) => {
    const { run } = event.target.dataset;
    if (run === undefined) percentile = Number(event.target.value);
    else shown[Number(run)] = event.target.checked;
    changed();
  });
  watchers.push(fill);
}
