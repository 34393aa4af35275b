// On a distribution: a line at the percentile under the pointer, or by the arrow keys, and each run's latency there.
const nines = (percent) => -Math.log10(Math.max(1 - percent / 100, 5e-5));
const percentOf = (height) => 100 * (1 - Math.pow(10, -height));

Object.entries(curves.quantities).forEach(([name, quantity]) => {
  const figure = document.querySelector(`figure[data-name="${name}"]`);
  const svg = figure && figure.querySelector("svg");
  const axes = svg && svg.querySelector(`[id="${name}-patch_2"] path`); // the rectangle of the axes
  if (!axes) return;
  let box = null; // of the axes, measured when it is first needed: until then the browser need not lay the picture out
  const top = nines(quantity.drawn) * 1.01;
  const line = svg.appendChild(svg.ownerDocument.createElementNS(svg.namespaceURI, "line"));
  line.setAttribute("class", "reading off");
  const says = figure.insertBefore(document.createElement("output"), figure.querySelector("figcaption"));
  const frame = figure.querySelector(".picture");
  frame.tabIndex = 0;
  frame.setAttribute("role", "application");
  frame.setAttribute("aria-label", `${quantity.title}: arrow up and down choose a percentile`);
  let percent = 99;

  function measured() {
    if (box) return box;
    box = axes.getBBox();
    line.setAttribute("x1", box.x);
    line.setAttribute("x2", box.x + box.width);
    return box;
  }

  function read(to) {
    measured();
    percent = clamp(to, 0, quantity.drawn);
    const y = box.y + box.height * (1 - nines(percent) / top);
    line.setAttribute("y1", y);
    line.setAttribute("y2", y);
    line.classList.remove("off");
    const texts = runs.map((run, index) => shown[index] && `${run.label} ${latency(latencyAt(name, index, percent))}`);
    says.textContent = `p${short(Math.round(percent * 100) / 100)}: ${texts.filter(Boolean).join(", ")}`;
  }

  watchers.push(() => { if (says.textContent) read(percent); });
  svg.addEventListener("pointermove", (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const height = (1 - (point.y - measured().y) / box.height) * top;
    if (height >= 0 && height <= top) read(percentOf(height));
  });
  svg.addEventListener("pointerleave", () => line.classList.add("off"));
  frame.addEventListener("keydown", (event) => {
    const by = { ArrowUp: 0.1, ArrowDown: -0.1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    read(percentOf(clamp(nines(percent) + by, 0, top)));
  });
});
