// A canvas that shows a stretch of time: zoom by wheel, buttons and keys, pan by dragging, a cursor that reads values.
// `paint(view)` draws; `read(view)` says what is under the cursor; `jump(view, direction)` gives the next step's time.
class View {
  constructor(host, { from, to, paint, read, jump, start }) {
    Object.assign(this, { host, from, to, paint, read, jump });
    this.canvas = host.querySelector("canvas");
    this.says = host.querySelector("output");
    [this.left, this.right] = start || [from, to];
    this.home = start;
    this.cursor = null;
    host.hidden = false;
    this.listen();
    watchers.push(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(host);
  }

  get span() { return this.right - this.left; }
  x(time) { return this.pad + ((time - this.left) / this.span) * (this.width - this.pad - 8); }
  time(x) { return this.left + ((x - this.pad) / (this.width - this.pad - 8)) * this.span; }

  show(left, span) {
    const most = this.to - this.from;
    const wide = clamp(span, Math.min(most, most / 2e5), most);
    this.left = clamp(left, this.from, this.to - wide);
    this.right = this.left + wide;
    this.draw();
  }

  zoom(factor, around) {
    const still = around === undefined ? (this.left + this.right) / 2 : around;
    this.show(still - (still - this.left) * factor, this.span * factor);
  }

  point(time) {
    this.cursor = clamp(time, this.from, this.to);
    if (this.cursor < this.left || this.cursor > this.right) this.show(this.cursor - this.span / 2, this.span);
    else this.draw();
  }

  step(direction) {
    const from = this.cursor === null ? this.left : this.cursor;
    const next = this.jump && this.jump(from, direction);
    if (next !== null && next !== undefined) this.point(next);
  }

  act(name) {
    const acts = {
      in: () => this.zoom(0.5, this.cursor === null ? undefined : this.cursor), out: () => this.zoom(2),
      left: () => this.show(this.left - this.span / 2, this.span),
      right: () => this.show(this.left + this.span / 2, this.span),
      all: () => this.show(this.from, this.to - this.from),
      window: () => this.show(this.home[0], this.home[1] - this.home[0]),
      back: () => this.step(-1), next: () => this.step(1),
    };
    if (acts[name]) acts[name]();
    return Boolean(acts[name]);
  }

  key(event) {
    const nudge = (share) => this.point((this.cursor === null ? (this.left + this.right) / 2 : this.cursor) + share * this.span);
    const named = { "+": "in", "=": "in", "-": "out", PageUp: "left", PageDown: "right", Home: "all", ",": "back", ".": "next" };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") nudge(event.key === "ArrowLeft" ? -0.01 : 0.01);
    else if (!this.act(named[event.key])) return;
    event.preventDefault();
  }

  listen() {
    const { canvas, host } = this;
    const at = (event) => this.time(event.clientX - canvas.getBoundingClientRect().left);
    let drag = null;
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== canvas) return; // the page scrolls until the picture is chosen
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, left: this.left }; });
    canvas.addEventListener("pointermove", (event) => {
      if (drag && event.buttons) this.show(drag.left - ((event.clientX - drag.x) / (this.width - this.pad)) * this.span, this.span);
      this.cursor = clamp(at(event), this.left, this.right);
      const box = canvas.getBoundingClientRect();
      this.row = event.clientY - box.top;
      this.draw();
    });
    canvas.addEventListener("pointerup", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => { drag = null; });
    host.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.act(button.dataset.act);
    });
  }

  // Draws once a frame, however often it is asked to.
  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.width = this.canvas.clientWidth;
      if (!this.width) return;
      this.pad = this.width < 500 ? 46 : 62;
      const height = this.paint.height(this);
      const sharp = window.devicePixelRatio || 1;
      this.canvas.width = Math.round(this.width * sharp);
      this.canvas.height = Math.round(height * sharp);
      this.canvas.style.height = `${height}px`;
      const pen = this.canvas.getContext("2d");
      pen.setTransform(sharp, 0, 0, sharp, 0, 0);
      pen.font = "12px system-ui, sans-serif";
      this.paint(this, pen);
      this.axis(pen, height);
      this.says.textContent = this.cursor === null ? "" : `${clock(this.cursor, this.span)}: ${this.read(this)}`;
    });
  }

  // Round ticks of time at the foot, and the cursor over everything.
  axis(pen, height) {
    const rough = this.span / Math.max(this.width / 110, 2);
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const tick = power * [1, 2, 5, 10].find((digit) => digit * power >= rough);
    pen.fillStyle = ink("muted");
    pen.textAlign = "center";
    pen.textBaseline = "bottom";
    for (let at = Math.ceil(this.left / tick) * tick; at <= this.right; at += tick) {
      pen.fillRect(this.x(at), height - 20, 1, 4);
      pen.fillText(clock(at, tick * 100), clamp(this.x(at), this.pad, this.width - 24), height - 1);
    }
    if (this.cursor !== null && this.cursor >= this.left && this.cursor <= this.right) {
      pen.fillStyle = ink("ink");
      pen.fillRect(this.x(this.cursor), 0, 1, height - 20);
    }
  }
}
const explorer = (kind) => document.querySelector(`.explorer[data-kind="${kind}"]`);
