// The live page. One file, as there is no build step: the feed, then what is known, then each part of the page.
// Nothing is ever put into the page as markup: names come from whoever speaks on the control topic.

const $ = (id) => document.getElementById(id);
const LINES_UP_TO = 64; // queues; above, the picture is a map of them, with a ribbon for each owner
const FLASH_MS = 1500; // how long a move is seen on the map
const WINDOW_MS = 120_000; // of the strips in the list
const ROW = 26; // pixels of a row, as in the style sheet
const COLOURS = 10;
const MOVES_LISTED = 80;
const RESTRIPING_STANDS_MS = 60_000; // without a shard that left, this is worth a word
const VERSION_TOLD_WITHIN_MS = 10_000; // a member that has just come is about to be asked for it
const STILL_NAMED = 3; // queues that stand still, in the notice
const QUIET_MS = 12_000; // a feed that says nothing for longer is gone: the server says something every 5 s

// -- what is known

const known = { meta: {}, stripedAt: 0, members: [], queues: [], moves: [], byQueue: new Map(), offset: Infinity, rates: [] };
const marked = { chosen: 0, kept: null, over: null }; // kept, over: {queue} or {member}

const now = () => performance.now() - known.offset;
const queueOf = (row) => ({ owner: row[0], state: row[1], flight: row[2], home: row[3], standbys: row[4], since: row[5], rate: row[6], depth: row[7], still: row[8] });
const nameOf = (index) => `${known.meta.group}/${index}`;
const memberOf = (position) => (position === null ? null : known.members[position]);
const memberName = (position) => memberOf(position)?.name ?? 'nobody';
const colour = (position) => (position === null ? '' : `c${position % COLOURS}`);
const shown = () => known.members.filter((one) => one && one.presence !== null);
const living = () => shown().filter((one) => !['gone', 'left'].includes(one.presence));
const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const count = (value) => (value === null || value === undefined ? '–' : whole.format(value));
const perSecond = (value) => (value === null ? '–' : value >= 10 || value === 0 ? whole.format(value) : value.toFixed(1));
const plural = (value, word) => `${count(value)} ${word}${value === 1 ? '' : 's'}`;
const since = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : ms < 90_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60_000)} min`);

function take(told) {
  // Perhaps of another server, whose clock has nothing to do with that of the one before.
  if (told.whole) Object.assign(known, { meta: {}, members: [], queues: [], moves: [], byQueue: new Map(), offset: Infinity });
  // The fastest arrival shows best how the clocks differ.
  known.offset = Math.min(known.offset, performance.now() - told.now);
  if (told.meta) {
    if (String(told.meta.restriping) !== String(known.meta.restriping)) known.stripedAt = told.now;
    known.meta = told.meta;
  }
  for (const [position, [name, presence, weight, at, version]] of Object.entries(told.members)) {
    known.members[position] = { position: Number(position), name, presence, weight, since: at, version };
  }
  known.queues.length = known.meta.queues;
  const fresh = new Set();
  for (const [index, row] of Object.entries(told.queues)) {
    const before = known.queues[index];
    known.queues[index] = queueOf(row);
    if (before && before.owner !== known.queues[index].owner) fresh.add(Number(index));
  }
  for (const [number, at, queue, giver, taker, cause, gap] of told.moves) {
    const move = { number, at, queue, giver, taker, cause, gap };
    known.moves.push(move);
    if (!known.byQueue.has(queue)) known.byQueue.set(queue, []);
    const ofQueue = known.byQueue.get(queue);
    ofQueue.push(move);
    // The newest from before the window says who had the queue when the window begins.
    while (ofQueue.length > 1 && ofQueue[1].at < at - WINDOW_MS) ofQueue.shift();
  }
  known.moves.splice(0, known.moves.length - MOVES_LISTED);
  if (!told.whole) announce(told.moves);
  show(fresh);
}

// -- the feed

let token = sessionStorage.getItem('token');

function ask(path, options = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(path, { ...options, headers, cache: 'no-store' });
}

async function follow() {
  for (;;) {
    try {
      const answer = await ask('v1/feed');
      if (answer.status === 401) {
        await askForToken();
        continue;
      }
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      await read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch {
      // Shown below, whatever it was: the page tries again until it is closed.
    }
    link('away', 'connection lost, trying again');
    document.body.classList.add('stale');
    await new Promise((resume) => setTimeout(resume, 1000));
  }
}

async function read(reader) {
  let rest = '';
  for (;;) {
    const timer = setTimeout(() => reader.cancel(), QUIET_MS);
    const { value, done } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) if (event.startsWith('data: ')) take(JSON.parse(event.slice(6)));
  }
}

function askForToken() {
  link('away', token ? 'the token was refused' : 'a token is needed');
  $('token').hidden = false;
  $('token-text').value = '';
  $('token-text').focus();
  return new Promise((resume) => {
    $('token').onsubmit = (event) => {
      event.preventDefault();
      token = $('token-text').value;
      sessionStorage.setItem('token', token);
      $('token').hidden = true;
      resume();
    };
  });
}

// -- small things

function text(element, words) {
  if (element.textContent !== String(words)) element.textContent = words;
}

function dress(element, classes) {
  const wanted = classes.filter(Boolean).join(' ');
  if (element.getAttribute('class') !== wanted) element.setAttribute('class', wanted);
}

function make(kind, classes = '', words = '') {
  const element = document.createElement(kind);
  if (classes) element.className = classes;
  if (words !== '') element.textContent = words;
  return element;
}

function nameQueue(element, index) {
  if (!element.children.length) element.append(make('span', 'stem'), make('span'));
  const [stem, number] = element.children;
  text(stem, known.meta.group);
  text(number, `/${index}`);
  stem.style.maxWidth = `calc(100% - ${number.textContent.length}ch)`;
  element.title = nameOf(index);
}

function link(state, words) {
  dress($('link'), [state]);
  text($('link'), words);
}

function fit(list, length, build) {
  while (list.children.length > length) list.lastElementChild.remove();
  while (list.children.length < length) list.append(build(list.children.length));
  return [...list.children];
}

const again = (element, name) => {
  element.classList.remove(name);
  void element.getBoundingClientRect(); // so that the animation restarts
  element.classList.add(name);
};

let saidAt = -Infinity;
function announce(moves) {
  // One sentence for many moves, and not all the time: it is read aloud.
  if (!moves.length || performance.now() - saidAt < 2000) return;
  saidAt = performance.now();
  const [, , queue, giver, taker, cause] = moves.at(-1);
  const rest = moves.length > 1 ? `, and ${moves.length - 1} more` : '';
  text($('said'), `${nameOf(queue)} moved from ${memberName(giver)} to ${memberName(taker)}: ${cause}${rest}`);
}

// -- the whole page

function show(fresh = new Set()) {
  const { meta } = known;
  document.body.classList.toggle('stale', !meta.connected);
  // The server does not know which; its log tells.
  link(meta.connected ? 'live' : 'away', meta.connected ? 'live' : 'not heard: the broker is out of reach, or refuses');
  if (document.title !== `${meta.group} · lbg`) document.title = `${meta.group} · lbg`;
  text($('group'), meta.group);
  text($('summary'), `${plural(living().length, 'member')} · ${plural(meta.queues, 'queue')} · ${plural(meta.shards, 'shard')}`);
  const sum = (pick) => known.queues.reduce((total, one) => total + (pick(one) ?? 0), 0);
  const rate = meta.rates ? sum((one) => one.rate) : null;
  text($('rate'), perSecond(rate));
  $('rate').title = meta.rates ? '' : 'no member has told yet how much it handles';
  text($('flight'), count(sum((one) => one.flight)));
  text($('depth'), meta.depths ? count(sum((one) => one.depth)) : '–');
  $('depth').title = meta.depths ? '' : 'the settings have no semp, or the broker does not answer';
  text($('parked'), meta.parked === null ? '–' : `${count(meta.parked)}${meta.parked_unknown ? '+' : ''}`);
  $('parked').classList.toggle('bad', meta.parked > 0 || meta.parked_unknown);
  $('parked').title = meta.parked === null ? 'no member tells it' : meta.parked_unknown ? 'not known of queues that wait for their parking queue' : '';
  text($('moved'), count(known.moves.at(-1)?.number ?? 0));
  showNotice();
  showFigure(fresh);
  showMoves();
  showRows();
}

function showNotice() {
  // A move takes less; anything longer is worth a word.
  const lacking = known.queues.filter((one) => one.owner === null && now() - one.since > 1000).length;
  const { restriping, placed, not_understood: notUnderstood } = known.meta;
  const notices = [];
  if (notUnderstood) notices.push(notUnderstood);
  if (lacking) notices.push(`${plural(lacking, 'queue')} without an owner`);
  const still = known.queues.flatMap((one, index) => (one.still ? [`${nameOf(index)} ${stillWords(one)}`] : []));
  const unnamed = still.length - STILL_NAMED;
  notices.push(...still.slice(0, STILL_NAMED));
  if (unnamed > 0) notices.push(`${plural(unnamed, 'queue')} more that ${unnamed === 1 ? 'stands' : 'stand'} still`);
  if (restriping) {
    const stoodFor = now() - known.stripedAt;
    const remedy = stoodFor < RESTRIPING_STANDS_MS ? '' : `, none for ${since(stoodFor)}; if nobody runs it, lbg group restripe --queues ${restriping[1]} ends it`;
    notices.push(`re-striping from ${restriping[0]} to ${restriping[1]} queues: ${restriping[2]} of ${restriping[3]} shards have left${remedy}`);
  }
  const versions = [...new Set(living().filter((one) => one.version || now() - one.since > VERSION_TOLD_WITHIN_MS).map((one) => one.version ?? 'not told'))];
  if (versions.length > 1) notices.push(`versions differ: ${versions.sort().join(', ')}`);
  if (!placed && living().length) notices.push('members do not agree yet on who is there: homes are those of before');
  dress($('notice'), [(lacking || still.length) && 'bad']);
  text($('notice'), notices.join(' · '));
}

const stillWord = ({ still: [, at] }) => (at === null ? 'stopped' : 'waits');

// In the words of `lbg group status` and of the search.
function stillWords({ owner, still: [reason, at] }) {
  if (at === null) return `of ${memberName(owner)} has stopped: queue_stopped in its log says why`;
  return `of ${memberName(owner)} waits for its parking queue, for ${since(now() - at)}: ${reason}`;
}

// -- the picture

const figure = { cards: new Map(), lines: new Map() };

const isMap = () => known.queues.length > LINES_UP_TO;

function showFigure(fresh) {
  const total = known.queues.length;
  text($('prefix'), `${known.meta.prefix}/0…${known.meta.shards - 1}`);
  document.body.classList.toggle('mapped', isMap());
  dress($('queues'), [total > 20 && 'dense']);
  const nodes = fit($('queues'), isMap() ? 0 : total, buildQueue);
  nodes.forEach((node, index) => dressQueue(node.firstElementChild, index, fresh));
  showCards();
  if (isMap()) drawMap();
  drawLines(fresh);
  showMarks();
}

function buildQueue(queue) {
  const item = make('li');
  const button = make('button');
  button.type = 'button';
  button.tabIndex = queue === 0 ? 0 : -1;
  button.append(make('b'), make('span'), make('i', 'fill'));
  listen(button, () => ({ queue }));
  item.append(button);
  return item;
}

function listen(button, target) {
  button.onclick = () => keep(target());
  button.onpointerenter = button.onfocus = () => point(target());
  button.onpointerleave = button.onblur = () => point(null);
}

function dressQueue(button, index, fresh) {
  const one = known.queues[index];
  dress(button, [one.state, one.still && 'still', colour(one.owner), button.classList.contains('new') && 'new']);
  if (fresh.has(index)) again(button, 'new');
  nameQueue(button.children[0], index);
  text(button.children[1], one.owner === null ? 'no owner' : one.still ? stillWord(one) : one.flight || '');
  button.children[2].style.width = one.depth ? `${Math.min(100, 18 * Math.log10(one.depth + 1))}%` : '0';
  button.setAttribute('aria-label', `${nameOf(index)}, ${sentence(one)}`);
}

function sentence(one) {
  const owner = one.owner === null ? 'no owner' : `owner ${memberName(one.owner)}${one.state === 'draining' ? ', draining' : ''}${one.owner === one.home ? ', at home' : ''}`;
  const standbys = one.standbys.length ? `; standbys ${one.standbys.map(memberName).join(', ')}` : '';
  return `${owner}, ${one.flight} in flight${one.still ? `, ${stillWord(one)}` : ''}${standbys}`;
}

function showCards() {
  const here = shown().sort((a, b) => a.name.localeCompare(b.name, 'en', { numeric: true }));
  const isDense = here.length > 9;
  dress($('members'), [isDense && 'dense']);
  const totals = new Map(here.map((one) => [one.position, { queues: 0, flight: 0, rate: 0 }]));
  for (const one of known.queues) {
    const total = totals.get(one.owner);
    if (total) Object.assign(total, { queues: total.queues + 1, flight: total.flight + one.flight, rate: total.rate + (one.rate ?? 0) });
  }
  const nodes = fit($('members'), here.length, buildCard);
  figure.cards = new Map();
  here.forEach((one, place) => {
    const button = nodes[place].firstElementChild;
    figure.cards.set(one.position, button);
    button.dataset.member = one.position;
    dress(button, [one.presence, colour(one.position), sameTarget(marked.kept, { member: one.position }) && 'kept']);
    const total = totals.get(one.position);
    const rate = known.meta.rates ? ` · ${perSecond(total.rate)}/s` : '';
    text(button.children[0], one.presence === 'active' ? '' : one.presence);
    text(button.children[1], one.name);
    const facts = `${plural(total.queues, 'queue')}${rate} · ${count(total.flight)} in flight`;
    text(button.children[2], isDense ? `${count(total.queues)}${rate}` : facts);
    button.title = `${one.name}${one.weight === 1 ? '' : `, weight ${one.weight}`}, version ${one.version ?? 'not told'}`;
    button.setAttribute('aria-label', `member ${one.name}, ${one.presence}, ${facts}`);
  });
}

function buildCard(place) {
  const item = make('li');
  const button = make('button');
  button.type = 'button';
  button.tabIndex = place === 0 ? 0 : -1;
  button.append(make('em'), make('b'), make('small'));
  listen(button, () => ({ member: Number(button.dataset.member) }));
  item.append(button);
  return item;
}

// A line is named by its queue, its member and its kind, so that it stays the same element while it only changes.
function wantedLines() {
  const found = [];
  known.queues.forEach((one, queue) => {
    found.push({ name: `${queue}<`, queue, member: null, classes: ['feed'] });
    for (const member of one.standbys) {
      if (member !== one.home) found.push({ name: `${queue}.${member}`, queue, member, classes: ['standby'] });
    }
    if (one.home !== null && one.home !== one.owner) {
      found.push({ name: `${queue}.${one.home}`, queue, member: one.home, classes: ['home'] });
    }
    if (one.owner !== null) {
      const elsewhere = one.home !== null && one.home !== one.owner;
      const isBusy = !one.still && (one.flight > 0 || one.rate > 0);
      const line = { name: `${queue}.${one.owner}`, queue, member: one.owner };
      found.push({ ...line, classes: ['fed', elsewhere && 'elsewhere', elsewhere && isBusy && 'moving', one.state === 'draining' && 'draining'] });
      if (isBusy && !elsewhere) found.push({ ...line, name: `${line.name}~`, classes: ['traffic'], rate: one.rate ?? 1 });
    }
  });
  return found.filter((line) => line.member === null || figure.cards.has(line.member));
}

function drawLines(fresh) {
  const box = $('figure').getBoundingClientRect();
  const wanted = isMap() ? ribbons(box) : courses(box, wantedLines());
  const left = new Map(figure.lines);
  for (const line of wanted) {
    let path = figure.lines.get(line.name);
    const isNew = !path;
    if (isNew) {
      path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
      figure.lines.set(line.name, path);
    }
    left.delete(line.name);
    if (path.getAttribute('d') !== line.course) path.setAttribute('d', line.course);
    path.dataset.queue = line.queue ?? '';
    path.dataset.member = line.member ?? '';
    path.style.strokeWidth = line.width ? `${line.width.toFixed(1)}px` : '';
    const kind = line.classes[0];
    const wasFed = path.classList.contains('fed');
    dress(path, ['line', ...line.classes, line.member !== null && colour(line.member)]);
    if (kind === 'fed' && !wasFed && fresh.has(line.queue)) again(path, 'new');
    if (line.rate !== undefined) path.style.animationDuration = `${Math.max(0.35, 1.6 - Math.log10(line.rate + 1) / 2).toFixed(2)}s`;
    // Fed lines above the others, traffic above all.
    if (kind === 'traffic' ? isNew : kind === 'fed' && !wasFed) $('lines').append(path);
    else if (isNew) $('lines').prepend(path);
  }
  for (const [name, path] of left) {
    path.remove();
    figure.lines.delete(name);
  }
}

function courses(box, lines) {
  const nodes = [...$('queues').children].map((item) => item.getBoundingClientRect());
  const cards = new Map([...figure.cards].map(([member, card]) => [member, card.getBoundingClientRect()]));
  const source = $('source').getBoundingClientRect();
  // Lines end side by side along the edge of a card, in the order of the queues.
  const ends = new Map();
  for (const { name, member } of lines) {
    if (member === null || name.endsWith('~')) continue;
    if (!ends.has(member)) ends.set(member, []);
    ends.get(member).push(name);
  }
  for (const line of lines) {
    const node = nodes[line.queue];
    const y = node.top + node.height / 2 - box.top;
    if (line.member === null) {
      line.course = curve(source.right - box.left, source.top + source.height / 2 - box.top, node.left - box.left, y);
      continue;
    }
    const card = cards.get(line.member);
    const names = ends.get(line.member);
    const share = (names.indexOf(line.name.replace('~', '')) + 1) / (names.length + 1);
    line.course = curve(node.right - box.left, y, card.left - box.left, card.top - box.top + card.height * share);
  }
  return lines;
}

// With many queues: one ribbon for each owner, as wide as its share, and one next to it for those not at home there.
function ribbons(box) {
  const map = $('map').getBoundingClientRect();
  const source = $('source').getBoundingClientRect();
  const middle = source.top + source.height / 2 - box.top;
  const found = [{ name: '<', member: null, classes: ['feed'], course: curve(source.right - box.left, middle, map.left - box.left, middle) }];
  let y = map.top - box.top;
  for (const [member, card] of figure.cards) {
    const rect = card.getBoundingClientRect();
    const own = known.queues.filter((one) => one.owner === member);
    const away = own.filter((one) => one.home !== null && one.home !== member).length;
    const widest = Math.min(map.height / known.queues.length, (rect.height - 8) / Math.max(own.length, 1));
    let end = rect.top - box.top + rect.height / 2 - (own.length * widest) / 2;
    for (const [size, elsewhere] of [[own.length - away, false], [away, true]]) {
      if (!size) continue;
      const width = Math.max(1, size * widest);
      const height = (size * map.height) / known.queues.length;
      const course = curve(map.right - box.left + 2, y + height / 2, rect.left - box.left, end + width / 2);
      found.push({ name: `${member}${elsewhere}`, member, classes: ['fed', 'ribbon', elsewhere && 'away'], width, course });
      y += height;
      end += width;
    }
  }
  return found;
}

function curve(x1, y1, x2, y2) {
  const bend = (x2 - x1) * 0.45;
  const at = (value) => value.toFixed(1);
  return `M${at(x1)} ${at(y1)}C${at(x1 + bend)} ${at(y1)} ${at(x2 - bend)} ${at(y2)} ${at(x2)} ${at(y2)}`;
}

function drawMap() {
  const total = known.queues.length;
  const width = $('map').parentElement.clientWidth;
  const height = Math.max(280, Math.min(520, 62 * figure.cards.size));
  let cell = Math.floor(Math.sqrt((width * height) / total));
  while (cell > 4 && Math.floor(width / cell) * Math.floor(height / cell) < total) cell -= 1;
  Object.assign(figure, { cell, columns: Math.max(1, Math.floor(width / cell)) });
  const pen = canvasOf($('map'), figure.columns * cell, Math.ceil(total / figure.columns) * cell);
  const { members, bad, text: ink, panel } = colours();
  const target = marked.over ?? marked.kept;
  known.queues.forEach((one, index) => {
    const x = (index % figure.columns) * cell;
    const y = Math.floor(index / figure.columns) * cell;
    const inner = cell - 2;
    const isMeant = !target || target.queue === index || (target.member !== undefined && target.member === one.owner);
    pen.globalAlpha = isMeant ? 1 : 0.16;
    pen.fillStyle = one.owner === null ? bad : members[one.owner % COLOURS];
    pen.fillRect(x, y, inner, inner);
    if (one.owner === null || (one.home !== null && one.home !== one.owner)) {
      // A hole: not at home, or with nobody at all.
      const hole = Math.max(2, Math.round(inner * (one.owner === null ? 0.75 : 0.4)));
      pen.fillStyle = panel;
      pen.fillRect(x + (inner - hole) / 2, y + (inner - hole) / 2, hole, hole);
    }
    const last = known.byQueue.get(index)?.at(-1);
    if ((last && now() - last.at < FLASH_MS) || marked.kept?.queue === index) {
      pen.globalAlpha = 1;
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      pen.strokeRect(x - 0.5, y - 0.5, inner + 1, inner + 1);
    }
  });
  pen.globalAlpha = 1;
}

function queueAt(event) {
  const box = $('map').getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / figure.cell);
  const index = Math.floor((event.clientY - box.top) / figure.cell) * figure.columns + column;
  return column < figure.columns && index < known.queues.length ? index : null;
}

$('map').onpointermove = (event) => {
  const index = queueAt(event);
  $('map').title = index === null ? '' : `${nameOf(index)}, ${sentence(known.queues[index])}`;
  if (marked.over?.queue !== (index ?? undefined)) point(index === null ? null : { queue: index });
};
$('map').onpointerleave = () => point(null);
$('map').onclick = (event) => {
  const index = queueAt(event);
  if (index !== null) keep({ queue: index });
};

// -- what the reader points at, and what is kept in view

const sameTarget = (a, b) => a === b || Boolean(a && b && a.queue === b.queue && a.member === b.member);

function point(target) {
  marked.over = target;
  showMarks();
}

function keep(target) {
  marked.kept = sameTarget(marked.kept, target) ? null : target;
  if (marked.kept?.queue !== undefined) choose(marked.kept.queue);
  show();
}

function showMarks() {
  const target = marked.over ?? marked.kept;
  const member = isMap() && target?.queue !== undefined ? known.queues[target.queue]?.owner : target?.member;
  for (const path of figure.lines.values()) {
    const isMeant = !target || (target.queue !== undefined && !isMap() ? path.dataset.queue === String(target.queue) : path.dataset.member === String(member));
    path.classList.toggle('dim', !isMeant);
  }
  [...$('queues').children].forEach((item, queue) => item.firstElementChild.classList.toggle('kept', sameTarget(marked.kept, { queue })));
  if (isMap()) drawMap();
}

function moveFocus(list, event) {
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const buttons = [...list.querySelectorAll('button')];
  const at = buttons.indexOf(document.activeElement);
  let to = step === undefined ? { Home: 0, End: buttons.length - 1 }[event.key] : at + step;
  if (at < 0 || to === undefined) return;
  to = Math.max(0, Math.min(buttons.length - 1, to));
  event.preventDefault();
  buttons.forEach((button, place) => (button.tabIndex = place === to ? 0 : -1));
  buttons[to].focus();
}

for (const list of [$('queues'), $('members')]) list.addEventListener('keydown', (event) => moveFocus(list, event));

addEventListener('keydown', (event) => {
  if (event.key === '/' && !['INPUT', 'TEXTAREA'].includes(document.activeElement.tagName)) {
    event.preventDefault();
    $('key').focus();
    $('key').select();
  } else if (event.key === 'Escape') {
    marked.kept = marked.over = null;
    if (document.activeElement === $('key')) $('key').blur();
    $('found').replaceChildren();
    show();
  }
});

// -- moves

let listed;
function showMoves() {
  // The move itself: a restarted server numbers its moves from 1 again.
  const newest = known.moves.at(-1);
  const list = $('moves');
  if (newest === listed && list.children.length) return;
  const items = known.moves.slice(-MOVES_LISTED).reverse().map(buildMove);
  listed = newest;
  list.replaceChildren(...(items.length ? items : [make('li', 'empty', 'No queue has changed its owner since this page is shown.')]));
}

function nameMember(position) {
  const chip = make('span', `chip ${colour(position)}`, memberName(position));
  chip.title = memberName(position);
  return chip;
}

function buildMove(move) {
  const item = make('li', move.cause);
  const at = new Date(Date.now() - (now() - move.at));
  const way = make('span');
  way.append(nameMember(move.giver), ' → ', nameMember(move.taker));
  const gap = move.gap === null ? '' : since(move.gap);
  const time = at.toLocaleTimeString('en-GB') + '.' + String(at.getMilliseconds()).padStart(3, '0').slice(0, 1);
  const what = make('b', '', `${nameOf(move.queue)} `);
  what.append(make('i', '', move.cause));
  item.append(what, make('span', '', time), way, make('span', '', gap));
  if (gap) item.children[3].title = 'for how long nobody said that it handles the queue, the drain included';
  return item;
}

// -- the list of queues: only the rows in view exist

function showRows() {
  const total = known.queues.length;
  $('space').style.height = `${total * ROW}px`;
  $('grid').setAttribute('aria-rowcount', total + 1);
  const rows = $('rows');
  const first = Math.max(0, Math.floor(rows.scrollTop / ROW) - 2);
  const last = Math.min(total - 1, Math.ceil((rows.scrollTop + (rows.clientHeight || 430)) / ROW) + 2);
  const nodes = [...rows.querySelectorAll('.row')];
  while (nodes.length > last - first + 1) nodes.pop().remove();
  while (nodes.length < last - first + 1) {
    const row = buildRow();
    rows.append(row);
    nodes.push(row);
  }
  nodes.forEach((row, place) => dressRow(row, first + place));
  drawTimes(first, last);
}

function buildRow() {
  const row = make('div', 'row');
  row.setAttribute('role', 'row');
  for (const kind of ['', 'chip', 'n', 'n', 'n', 'times']) {
    const cell = make('span', kind);
    cell.setAttribute('role', 'gridcell');
    row.append(cell);
  }
  row.onclick = () => {
    choose(Number(row.dataset.queue));
    keep({ queue: Number(row.dataset.queue) });
  };
  return row;
}

function dressRow(row, index) {
  const one = known.queues[index];
  row.dataset.queue = index;
  row.id = `row-${index}`;
  row.style.top = `${index * ROW}px`;
  row.setAttribute('aria-rowindex', index + 2);
  row.setAttribute('aria-selected', index === marked.chosen);
  dress(row, ['row', one.state, one.still && 'still', index === marked.chosen && 'chosen', marked.kept?.queue === index && 'kept']);
  const [name, owner, flight, rate, depth, times] = row.children;
  nameQueue(name, index);
  dress(owner, ['chip', colour(one.owner)]);
  text(owner, one.owner === null ? 'no owner' : memberName(one.owner) + (one.still ? `, ${stillWord(one)}` : '') + (one.state === 'draining' ? ', draining' : one.home === null || one.home === one.owner ? '' : ', not at home'));
  text(flight, count(one.flight));
  text(rate, perSecond(one.rate));
  text(depth, count(one.depth));
  times.setAttribute('aria-label', history(index));
}

function history(index) {
  const moves = (known.byQueue.get(index) ?? []).filter((move) => now() - move.at < WINDOW_MS);
  return moves.length ? moves.map((move) => `${memberName(move.giver)} to ${memberName(move.taker)}, ${move.cause}`).join('; ') : 'no move';
}

function choose(index) {
  marked.chosen = Math.max(0, Math.min(known.queues.length - 1, index));
  $('grid').setAttribute('aria-activedescendant', `row-${marked.chosen}`);
  const rows = $('rows');
  const top = marked.chosen * ROW;
  if (top < rows.scrollTop) rows.scrollTop = top;
  else if (top + ROW > rows.scrollTop + rows.clientHeight) rows.scrollTop = top + ROW - rows.clientHeight;
  showRows();
}

$('rows').addEventListener('scroll', showRows);
$('grid').addEventListener('keydown', (event) => {
  const page = Math.floor($('rows').clientHeight / ROW);
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  if (event.key in steps) choose(marked.chosen + steps[event.key]);
  else if (event.key === 'Enter' || event.key === ' ') keep({ queue: marked.chosen });
  else return;
  event.preventDefault();
});

// -- strips of time: one canvas over the rows in view

let palette = null;
function colours() {
  if (palette) return palette;
  const style = (name) => getComputedStyle(document.body).getPropertyValue(name);
  const probe = make('i');
  document.body.append(probe);
  const real = (name) => {
    probe.style.color = style(name);
    return getComputedStyle(probe).color;
  };
  palette = { members: [...Array(COLOURS).keys()].map((one) => real(`--m${one}`)), bad: real('--bad'), text: real('--text'), soft: real('--soft'), edge: real('--edge'), panel: real('--panel') };
  probe.remove();
  return palette;
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  palette = null;
  show();
});

function canvasOf(element, width, height) {
  const scale = devicePixelRatio || 1;
  if (element.width !== Math.round(width * scale) || element.height !== Math.round(height * scale)) {
    element.width = Math.round(width * scale);
    element.height = Math.round(height * scale);
    element.style.width = `${width}px`;
    element.style.height = `${height}px`;
  }
  const pen = element.getContext('2d');
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

function drawTimes(first, last) {
  const cell = $('rows').querySelector('.row .times');
  if (!cell || last < first) return;
  const width = cell.offsetWidth;
  const pen = canvasOf($('times'), width, (last - first + 1) * ROW);
  $('times').style.left = `${cell.offsetLeft}px`;
  $('times').style.top = `${first * ROW}px`;
  const { members, bad, text: ink, edge } = colours();
  const end = now();
  const at = (time) => Math.max(0, ((time - end) / WINDOW_MS + 1) * width);
  for (let index = first; index <= last; index++) {
    const y = (index - first) * ROW + 6;
    pen.fillStyle = edge;
    pen.fillRect(0, y + 6.5, width, 1);
    for (const [from, to, member] of tenures(index)) {
      if (to < end - WINDOW_MS) continue;
      pen.fillStyle = member === null ? bad : members[member % COLOURS];
      const x = at(from);
      if (member === null) pen.fillRect(x, y + 5.5, Math.max(1, at(to) - x), 3);
      else pen.fillRect(x, y, Math.max(1, at(to) - x), 14);
    }
    for (const move of known.byQueue.get(index) ?? []) {
      if (move.at < end - WINDOW_MS) continue;
      pen.fillStyle = move.cause === 'takeover' ? bad : ink;
      pen.fillRect(Math.round(at(move.at)) - 1, y - 3, 2, 20);
    }
  }
}

// Who had a queue, from when to when; nobody while it moved.
function tenures(index) {
  const one = known.queues[index];
  const found = [];
  let from = null;
  let holder = null;
  for (const move of known.byQueue.get(index) ?? []) {
    const left = move.at - (move.gap ?? 0);
    found.push([from ?? known.meta.since, left, move.giver], [left, move.at, null]);
    [from, holder] = [move.at, move.taker];
  }
  if (one.owner !== null) found.push([from ?? one.since, now(), one.owner]);
  else if (holder !== null) found.push([from, one.since, holder]);
  if (one.owner === null && one.since) found.push([one.since, now(), null]);
  return found;
}

function drawSpark() {
  const samples = known.rates;
  if (known.meta.rates) samples.push(known.queues.reduce((total, one) => total + (one.rate ?? 0), 0));
  samples.splice(0, samples.length - 60);
  const [width, height] = [120, 28];
  const pen = canvasOf($('spark'), width, height);
  if (samples.length < 2) return;
  const top = Math.max(1, ...samples);
  pen.beginPath();
  samples.forEach((value, place) => pen.lineTo(width - (samples.length - 1 - place) * (width / 59), height - 2 - (value / top) * (height - 4)));
  pen.strokeStyle = colours().soft;
  pen.lineWidth = 1.5;
  pen.stroke();
}

// -- where is a key: in the words of `lbg why`

const MOVED = { error_queue: 'moved to the error queue', dmq: 'moved to the dead message queue' };

$('why').addEventListener('submit', async (event) => {
  event.preventDefault();
  const key = $('key').value;
  $('found').replaceChildren(make('p', '', 'asking the members …'));
  try {
    const answer = await ask(`v1/why?key=${encodeURIComponent(key)}`);
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error);
    showFound(told);
  } catch (error) {
    $('found').replaceChildren(make('p', 'bad', error.message));
  }
});

function showFound(told) {
  const index = Number(told.queue.slice(told.queue.lastIndexOf('/') + 1));
  const facts = make('dl');
  const add = (name, words, classes = '') => facts.append(make('dt', '', name), make('dd', classes, words));
  add('key', told.key);
  add('shard', `${told.shard}, in ${told.queue}`);
  const owners = told.answers.filter((one) => one.flow && one.flow.state !== 'standby');
  if (!told.answers.length) add('owner', 'nobody answered', 'bad');
  else if (!owners.length) add('owner', 'none of the members that answered', 'bad');
  for (const one of owners) {
    const position = known.members.findIndex((member) => member?.name === one.member);
    add('owner', `${one.member}, ${one.flow.state}, epoch ${one.flow.epoch}`, position < 0 ? '' : `chip ${colour(position)}`);
  }
  for (const one of told.answers.filter((each) => owners.includes(each) || each.head)) {
    if (!owners.includes(one)) add('also at', `${one.member}, which is not its owner any more`, 'bad');
    if (owners.includes(one) && one.stopped) add('stopped', 'nothing of any key of its queue is started; queue_stopped in its owner\'s log says why', 'bad');
    add('in flight', one.head ? headWords(one.head) : 'nothing');
    if (one.head?.topic) add('its topic', one.head.topic);
    if (one.head?.error) add('its last failure', one.head.error, 'bad');
    if (one.parking_wait) add('parked', `not known, and nothing of the queue is handled until it is: ${one.parking_wait.reason}`, 'bad');
    if (one.parked) add('parked', `${plural(one.parked, 'message')}, and what comes is parked too`, 'bad');
    if (one.waiting) add('behind it', plural(one.waiting, 'message'));
    if (one.last) add(MOVED[one.last.outcome] ? 'last, not handled' : 'last handled', lastWords(one.last));
  }
  const isKnown = told.known || owners.some((one) => one.parking_wait); // what such an owner has is not known: see above
  if (owners.length && !isKnown) add('', 'its owner has nothing of it, and has handled none lately');
  if (told.disagree.length) add('', `${told.disagree.join(', ')} would put it into another shard: the settings differ`, 'bad');
  $('found').replaceChildren(facts);
  if (index in known.queues) {
    choose(index);
    marked.kept = { queue: index };
    show();
  }
}

function headWords(head) {
  const number = head.number === null ? '' : `number ${head.number}, `;
  const again = head.redelivered ? ', redelivered' : '';
  const received = `${number}received ${since(head.received_ms)} ago${again}`;
  if (head.started_ms === null) return `${received}, ${head.stage === 'delayed' ? 'not handled: it is to be parked, or its queue has stopped' : 'waits for a runner, its batch or its application'}`;
  const retry = head.retry_in_ms === null ? '' : `, again in ${since(head.retry_in_ms)}`;
  return `${received}, first tried ${since(head.started_ms)} ago, attempt ${head.attempts} ${head.stage === 'running' ? 'runs' : `failed${retry}`}`;
}

function lastWords(last) {
  const number = last.number === null ? '' : `number ${last.number}, `;
  const moved = MOVED[last.outcome] ? `${MOVED[last.outcome]} ` : '';
  return `${number}${moved}${since(last.ended_ms)} ago${last.attempts === 1 ? '' : `, after ${plural(last.attempts, 'attempt')}`}`;
}

// -- go

new ResizeObserver(() => known.queues.length && show()).observe($('figure'));
const isCalm = matchMedia('(prefers-reduced-motion: reduce)');
function tick() {
  if (!known.queues.length || document.hidden || (isCalm.matches && ticks % 4)) return;
  showRows();
  if (isMap()) drawMap();
}

let ticks = 0;
setInterval(() => {
  ticks += 1;
  tick();
  if (ticks % 4 === 0 && known.queues.length) {
    showNotice();
    drawSpark();
  }
}, 250);
follow();

export { known, take, WINDOW_MS }; // for the tests alone
