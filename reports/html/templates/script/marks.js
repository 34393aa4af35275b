// A picture whose values are at hand: the one under the pointer, or the next by the arrow keys, gets a ring and is read
// off; its curves can be hidden, and it zooms. The picture is the SVG, and zooming is a part of it for the whole.
class Marks {
  constructor(figure, svg, marks) {
    Object.assign(this, { svg, ...marks });
    this.frame = figure.querySelector(".picture");
    this.says = figure.insertBefore(made("output"), figure.querySelector("figcaption"));
    this.hidden = new Set();
    this.at = null;
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    Object.assign(this, { width, height, left: 0, top: 0, part: 1 });
    this.ring = svg.appendChild(document.createElementNS(svg.namespaceURI, "circle"));
    this.ring.setAttribute("class", "ring off");
    this.frame.before(...this.tools(svg.getAttribute("aria-label"), figure));
    this.frame.tabIndex = 0;
    this.frame.setAttribute("role", "application");
    this.frame.setAttribute("aria-label", `${svg.getAttribute("aria-label")}: arrow keys go from value to value, + and - zoom`);
    this.listen();
  }

  // Buttons that zoom, where there are so many values that it helps, and a choice of the curves, where there are several.
  tools(name, figure) {
    const act = (words, does) => made("button", { type: "button", textContent: words, onclick: does });
    const bar = made("div", { className: "tools" }, act("Zoom in", () => this.zoom(0.6)), act("Zoom out", () => this.zoom(1 / 0.6)),
      act("All", () => this.zoom(1e9)));
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", `${name}: what is shown`);
    return [...(this.words.length > 48 ? [bar] : []), ...(this.series.length > 1 ? [this.choice(figure)] : [])];
  }

  choice(figure) {
    const choice = made("fieldset", {}, made("legend", { textContent: "Shown" }));
    this.series.forEach((one, number) => {
      const box = made("input", { type: "checkbox", checked: true });
      box.addEventListener("change", () => {
        this.hidden[box.checked ? "delete" : "add"](number);
        all(`.run-${number}`, figure).forEach((part) => part.classList.toggle("off", !box.checked));
        if (this.at !== null && this.hidden.has(this.of[this.at])) this.none();
      });
      choice.append(made("label", {}, box, this.chip(one.color), one.label));
    });
    return choice;
  }

  chip(color) {
    const svg = document.createElementNS(this.svg.namespaceURI, "svg");
    const square = svg.appendChild(document.createElementNS(this.svg.namespaceURI, "rect"));
    [["class", "chip"], ["viewBox", "0 0 8 8"], ["aria-hidden", "true"]].forEach(([key, value]) => svg.setAttribute(key, value));
    [["width", 8], ["height", 8], ["fill", color]].forEach(([key, value]) => square.setAttribute(key, value));
    return svg;
  }

  zoom(factor, x, y) {
    const part = clamp(this.part * factor, 1 / 16, 1);
    const around = [x, y].map((each, side) => each !== undefined ? each : this.at !== null ? [this.x, this.y][side][this.at]
      : side ? this.top + (this.part * this.height) / 2 : this.left + (this.part * this.width) / 2);
    const share = part / this.part;
    this.part = part;
    this.move(around[0] - (around[0] - this.left) * share, around[1] - (around[1] - this.top) * share);
  }

  move(left, top) {
    this.left = clamp(left, 0, this.width * (1 - this.part));
    this.top = clamp(top, 0, this.height * (1 - this.part));
    this.svg.setAttribute("viewBox", `${this.left} ${this.top} ${this.width * this.part} ${this.height * this.part}`);
    this.ring.setAttribute("r", 7 * Math.sqrt(this.part));
  }

  none() {
    this.at = null;
    this.ring.classList.add("off");
    this.says.textContent = "";
  }

  read(at) {
    this.at = at;
    this.ring.setAttribute("cx", this.x[at]);
    this.ring.setAttribute("cy", this.y[at]);
    if (!this.ring.hasAttribute("r")) this.ring.setAttribute("r", 7);
    this.ring.classList.remove("off");
    this.says.textContent = this.words[at];
  }

  // The nearest value that `may` be taken, no further than `most`.
  nearest(x, y, most, may) {
    let found = null, least = most * most;
    this.x.forEach((each, at) => {
      const apart = (each - x) ** 2 + (this.y[at] - y) ** 2;
      if (apart < least && !this.hidden.has(this.of[at]) && may(at)) [found, least] = [at, apart];
    });
    return found;
  }

  // Left and right along a curve, up and down to the nearest value that lies there on another.
  step(key) {
    const { at } = this;
    if (at === null) return this.nearest(0, this.height, Infinity, () => true);
    if (key === "ArrowUp" || key === "ArrowDown") {
      const down = key === "ArrowDown" ? 1 : -1;
      return this.nearest(this.x[at], this.y[at], Infinity, (to) => this.of[to] !== this.of[at] && (this.y[to] - this.y[at]) * down > 0);
    }
    const mine = this.x.map((_, to) => to).filter((to) => this.of[to] === this.of[at]).sort((a, b) => this.x[a] - this.x[b] || a - b);
    return mine[mine.indexOf(at) + (key === "ArrowRight" ? 1 : -1)];
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = { "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), Home: () => this.zoom(1e9) };
    if (acts[event.key]) acts[event.key]();
    else if (event.key.startsWith("Arrow")) {
      const to = this.step(event.key);
      if (to !== null && to !== undefined) this.read(to);
    } else return;
    event.preventDefault();
  }

  listen() {
    const { frame, svg } = this;
    const point = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let drag = null;
    frame.addEventListener("keydown", (event) => this.key(event));
    svg.addEventListener("pointerdown", (event) => { drag = point(event); });
    svg.addEventListener("pointerup", () => { drag = null; });
    svg.addEventListener("pointerleave", () => { drag = null; });
    svg.addEventListener("pointermove", (event) => {
      const here = point(event);
      if (drag && event.buttons && this.part < 1) {
        this.move(this.left + drag.x - here.x, this.top + drag.y - here.y);
        return;
      }
      const found = this.nearest(here.x, here.y, 28 * Math.sqrt(this.part), () => true);
      if (found !== null) this.read(found);
    });
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== frame) return; // the page scrolls until the picture is chosen
      event.preventDefault();
      const here = point(event);
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, here.x, here.y);
    }, { passive: false });
  }
}
Object.entries(data.marks || {}).forEach(([name, marks]) => {
  const figure = document.querySelector(`figure[data-name="${name}"]`);
  const svg = figure && figure.querySelector(".picture > svg");
  if (svg) new Marks(figure, svg, marks);
});
