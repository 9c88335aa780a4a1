// Figures of a report: a mark under the pointer says what it is, series can be switched off. Without scripts a figure is
// its image. The data lie beside it (figures/marks.py): series, texts, and marks with their places in the image.
(function () {
  "use strict";
  const SCALE = 10000, NEAR = 16, SVG = "data:image/svg+xml;base64,";
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);

  function decode(address) {
    const bytes = Uint8Array.from(atob(address.slice(SVG.length)), (character) => character.charCodeAt(0));
    return new TextDecoder().decode(bytes);
  }

  function encode(text) {
    let bytes = "";
    for (const byte of new TextEncoder().encode(text)) bytes += String.fromCharCode(byte);
    return SVG + btoa(bytes);
  }

  // A mark with its places as parts of the image; a point is a rectangle without extent.
  function read(held, texts) {
    const places = held.slice(1, -3).map((place) => place / SCALE);
    const [left, top, right, bottom] = places.length === 4 ? places : [...places, ...places];
    return { series: held[0], left, top, right, bottom, lines: held.slice(-3).map((index) => texts[index]) };
  }

  function distance(mark, x, y, width, height) {
    const dx = Math.max(mark.left * width - x, 0, x - mark.right * width);
    const dy = Math.max(mark.top * height - y, 0, y - mark.bottom * height);
    return Math.hypot(dx, dy);
  }

  function nearest(marks, x, y, width, height) {
    let best = null, least = NEAR;
    for (const mark of marks) {
      const away = distance(mark, x, y, width, height);
      if (away < least) [best, least] = [mark, away];
    }
    return best;
  }

  function tell(mark, box, colour) {
    tip.replaceChildren(...mark.lines.filter((line) => line !== "").map(function (line, index) {
      const element = document.createElement(index === 0 ? "b" : "div");
      element.textContent = line;
      return element;
    }));
    tip.style.borderColor = colour;
    tip.hidden = false;
    // Above the mark and inside of the window; below it where there is no room above.
    const x = box.left + (mark.left + mark.right) / 2 * box.width;
    const above = box.top + mark.top * box.height - tip.offsetHeight - 10;
    const y = above >= 0 ? above : box.top + mark.bottom * box.height + 12;
    const most = document.documentElement.clientWidth - tip.offsetWidth - 6;
    tip.style.left = Math.max(6, Math.min(x - tip.offsetWidth / 2, most)) + window.scrollX + "px";
    tip.style.top = y + window.scrollY + "px";
  }

  // The image without the series that are off: hidden, as other parts may use shapes that theirs define.
  function drawn(original, off) {
    if (!off.size) return original;
    const image = new DOMParser().parseFromString(decode(original), "image/svg+xml");
    for (const part of image.querySelectorAll("[id^=series-]")) {
      if (off.has(Number(part.id.split("-")[1]))) part.setAttribute("display", "none");
    }
    return encode(new XMLSerializer().serializeToString(image));
  }

  function alive(figure, held) {
    const image = figure.querySelector("img"), marks = held.marks.map((mark) => read(mark, held.texts));
    const original = image.src, off = new Set(), spot = document.createElement("span");
    let at = -1;
    const frame = document.createElement("div");
    frame.className = "frame";
    image.before(frame);
    frame.append(image, spot);
    spot.className = "spot";
    spot.hidden = true;

    const visible = () => marks.filter((mark) => !off.has(mark.series));
    function hide() {
      tip.hidden = spot.hidden = true;
      at = -1;
    }
    function show(mark) {
      const box = image.getBoundingClientRect();
      const colour = mark.series < 0 ? "#555555" : held.series[mark.series][1];
      spot.style.left = 100 * mark.right + "%";
      spot.style.top = 50 * (mark.top + mark.bottom) + "%";
      spot.style.borderColor = colour;
      spot.hidden = false;
      tell(mark, box, colour);
    }
    function point(event) {
      const box = image.getBoundingClientRect();
      const mark = nearest(visible(), event.clientX - box.left, event.clientY - box.top, box.width, box.height);
      if (mark) show(mark);
      else hide();
    }
    frame.addEventListener("pointermove", point);
    frame.addEventListener("pointerdown", point);
    frame.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
    // The arrow keys walk along the marks.
    frame.tabIndex = 0;
    frame.setAttribute("aria-label", "figure; the arrow keys read its points");
    frame.addEventListener("blur", hide);
    frame.addEventListener("keydown", function (event) {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], those = visible();
      if (event.key === "Escape") hide();
      if (!step || !those.length) return;
      event.preventDefault();
      at = at < 0 && step < 0 ? those.length - 1 : (at + step + those.length) % those.length;
      show(those[at]);
    });
    if (held.series.length > 1) frame.before(switches(held.series, off, function () {
      hide();
      image.src = drawn(original, off);
    }));
    window.addEventListener("beforeprint", function () {
      hide();
      image.src = original;
    });
    window.addEventListener("afterprint", () => { image.src = drawn(original, off); });
  }

  function switches(series, off, changed) {
    const list = document.createElement("div");
    list.className = "tools series";
    series.forEach(function ([name, colour], index) {
      const button = document.createElement("button"), colourful = document.createElement("span");
      button.type = "button";
      button.title = "show or hide this series";
      button.setAttribute("aria-pressed", "true");
      colourful.style.backgroundColor = colour;
      button.append(colourful, name);
      button.addEventListener("click", function () {
        if (!off.delete(index)) off.add(index);
        button.setAttribute("aria-pressed", String(!off.has(index)));
        changed();
      });
      list.append(button);
    });
    return list;
  }

  for (const data of document.querySelectorAll("figure script.answers")) {
    alive(data.closest("figure"), JSON.parse(data.textContent));
  }
})();
