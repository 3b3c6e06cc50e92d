// What lets the pictures of a kernel's reports answer: a button on each that the kernel still knows;
// pressed, it asks for the cell's course, and the first time for `screen.js`, which draws it.

const LOOKS = `
.gpumem-figure { position: relative;
  padding-bottom: clamp(2px, calc((822px - 100%) * 99), 12px); /* beside the picture there is room */ }
.gpumem-figure > button { position: absolute; bottom: 0; right: 0; z-index: 1; font: inherit;
  font-size: 11px; min-height: 24px; padding: 1px 8px; cursor: pointer; color: inherit;
  background: transparent; border: 1px solid rgba(128,128,128,.6); border-radius: 4px; }
.gpumem-figure > button[aria-expanded=true] { position: static; }
.gpumem-figure > button:focus-visible { outline: 2px solid #3b82f6; outline-offset: 1px; }
`;
const OFFER = "Explore";
const TOLD = "Point at it, zoom, list blocks: by mouse and by keyboard";
const PATIENCE = 1500; // milliseconds until the button says why nothing comes

async function unpacked(view) {
  const stream = new Blob([view]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

function initialize({ model }) {
  const figures = new Map(); // what became of each picture
  const asked = []; // places that wait for a course, by key
  let [drawing, due] = [null, 0];

  /** The module that draws; asked for once. */
  function drawn() {
    drawing ??= new Promise((resolve) => {
      model.on("msg:custom", async (content, [text]) => {
        if (!content.module) return;
        const url = URL.createObjectURL(new Blob([await unpacked(text)], { type: "text/javascript" }));
        resolve(import(url));
      });
      model.send({ module: true });
    });
    return drawing;
  }

  function offer() {
    due = 0;
    const known = model.get("known").split(" ");
    for (const picture of document.querySelectorAll("img[data-gpumem]")) {
      if (known.includes(picture.dataset.gpumem) && !figures.has(picture)) frame(picture);
    }
    for (const [picture, end] of figures) if (!picture.isConnected) end();
  }

  function frame(picture) {
    const place = document.createElement("div");
    const [outer, button] = [document.createElement("div"), document.createElement("button")];
    const ends = [];
    outer.className = "gpumem-figure";
    [button.type, button.title] = ["button", TOLD];
    const turn = (open) => {
      picture.style.display = open ? "none" : "block";
      place.hidden = !open;
      button.textContent = open ? "Back to the picture" : OFFER;
      button.setAttribute("aria-expanded", open);
    };
    const show = async (course) => {
      const { keys, timeline } = await drawn();
      timeline(place, JSON.parse(course));
      ends.push(keys(place));
      turn(true);
      place.querySelector("[role=slider]").focus();
    };
    button.onclick = () => {
      if (place.firstChild) return turn(place.hidden);
      const slow = setTimeout(() => { button.textContent = "It comes when the cell has ended"; }, PATIENCE);
      asked.push([picture.dataset.gpumem, (course) => {
        clearTimeout(slow);
        if (course) show(course);
        else button.textContent = "The kernel no longer has this report";
      }]);
      model.send({ course: picture.dataset.gpumem });
    };
    turn(false);
    picture.before(outer);
    outer.append(picture, place, button);
    figures.set(picture, () => {
      ends.forEach((end) => end());
      figures.delete(picture);
      picture.style.display = "block";
      outer.replaceWith(picture);
    });
  }

  async function answered(content, buffers) {
    if (!content.course) return;
    const course = buffers[0]?.byteLength ? await unpacked(buffers[0]) : "";
    const waiting = asked.filter(([key]) => key === content.course);
    for (const one of waiting) {
      asked.splice(asked.indexOf(one), 1);
      one[1](course);
    }
  }

  const style = document.createElement("style");
  style.textContent = LOOKS;
  document.head.append(style);
  const watch = new MutationObserver(() => { due ||= setTimeout(offer, 200); });
  watch.observe(document.body, { childList: true, subtree: true });
  model.on("change:known", offer);
  model.on("msg:custom", answered);
  offer();
  return () => {
    watch.disconnect();
    clearTimeout(due);
    style.remove();
    for (const end of [...figures.values()]) end();
  };
}

export default { initialize };
