# %% pgd-create-graph | 60MiB | ^growth .* delta holds .*take delta\.detach\(\).*create_graph
x, y = (t.to(device) for t in next(iter(loader)))
delta = torch.zeros_like(x, requires_grad=True)
for it in range(200):
    loss = criterion(net(x + delta), y)
    grad = torch.autograd.grad(loss, delta, create_graph=True)[0]
    delta = delta + 0.01 * grad.sign()
    delta = torch.clamp(delta, -0.03, 0.03)
# %% pgd-function-create-graph | 60MiB | ^growth .* delta in pgd_attack\(\) holds .*take delta\.detach\(\).*create_graph
def pgd_attack(model, x, y, eps=0.03, alpha=0.01, steps=200):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(steps):
        loss = criterion(model(x + delta), y)
        g, = torch.autograd.grad(loss, delta, create_graph=True)
        delta = (delta + alpha * g).clamp(-eps, eps)
    return x + delta
for xb, yb in loader:
    adv = pgd_attack(net, xb.to(device), yb.to(device))
# %% pgd-class-create-graph | 60MiB | ^growth .* self\.delta in perturb\(\) holds .*take self\.delta\.detach\(\).*create_graph
class PGD:
    def __init__(self, model, steps=200, lr=0.01):
        self.model, self.steps, self.lr = model, steps, lr
    def step(self, x, y):
        loss = criterion(self.model(x + self.delta), y)
        grad, = torch.autograd.grad(loss, self.delta, create_graph=True)
        self.delta = self.delta + self.lr * grad
    def perturb(self, x, y):
        self.delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(self.steps): self.step(x, y)
        return self.delta
xb, yb = next(iter(loader))
d = PGD(net).perturb(xb.to(device), yb.to(device))
# %% pgd-two-cells | 60MiB | ^growth .* delta in attack\(\) holds .*take delta\.detach\(\).*create_graph
# ## earlier
def attack(model, x, y, steps=200):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(steps):
        loss = criterion(model(x + delta), y)
        g, = torch.autograd.grad(loss, delta, create_graph=True)
        delta = delta + 0.01 * g
    return delta
# ## cell
xb, yb = next(iter(loader))
adv = attack(net, xb.to(device), yb.to(device))
# %% mi-fgsm-self-grad | 60MiB | ^growth .* attack\.grad holds .*take attack\.grad\.detach\(\).*create_graph
class MIFGSM:
    def __init__(self, model, mu=0.9): self.model, self.mu, self.grad = model, mu, 0
    def step(self, x, y):
        loss = criterion(self.model(x), y)
        g = torch.autograd.grad(loss, x, create_graph=True)[0]
        self.grad = self.mu * self.grad + g / g.abs().mean()
        return x + 0.01 * self.grad.sign()
attack = MIFGSM(net)
for xb, yb in loader:
    x = xb.to(device).requires_grad_(True)
    x_adv = attack.step(x, yb.to(device))
# %% delta-grad-optimizer | 60MiB | ^growth .* delta\.grad \(line 8\) is given a gradient with its graph
x, y = (t.to(device) for t in next(iter(loader)))
for restart in range(100):
    delta = nn.Parameter(torch.zeros_like(x))
    opt = torch.optim.SGD([delta], lr=0.1)
    for it in range(2):
        loss = -criterion(net(x + delta), y)
        delta.grad = torch.autograd.grad(loss, delta, create_graph=True)[0]
        opt.step()
# %% wgan-gp-kept | 60MiB | ^growth .* penalties\[\*\] holds .*Keep \.item\(\)
critic = nn.Sequential(nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).to(device)
optC = torch.optim.SGD(critic.parameters(), lr=1e-3)
penalties = []
def gradient_penalty(critic, real, fake):
    eps = torch.rand(len(real), 1, device=device)
    mix = (eps * real + (1 - eps) * fake).requires_grad_(True)
    score = critic(mix)
    g = torch.autograd.grad(score.sum(), mix, create_graph=True)[0]
    return ((g.norm(2, dim=1) - 1) ** 2).mean()
for xb, _ in loader:
    real, fake = xb.to(device), torch.randn(512, 256, device=device)
    gp = gradient_penalty(critic, real, fake)
    loss = critic(fake).mean() - critic(real).mean() + 10 * gp
    optC.zero_grad(); loss.backward(retain_graph=True); optC.step()
    penalties.append(gp)
# %% wgan-gp-sum | 60MiB | ^growth .* gp_total holds .*detach
critic = nn.Sequential(nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).to(device)
def gp_of(critic, real, fake):
    eps = torch.rand(len(real), 1, device=device)
    mix = (eps * real + (1 - eps) * fake).requires_grad_(True)
    g = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)[0]
    return ((g.norm(2, dim=1) - 1) ** 2).mean()
gp_total = 0
for xb, _ in loader:
    gp_total = gp_total + gp_of(critic, xb.to(device), torch.randn(512, 256, device=device))
# %% grad-penalty-method-self | 60MiB | ^growth .* w\.log\['gp'\]\[\*\] holds .*Keep \.item\(\)
class WGAN:
    def __init__(self):
        self.D = nn.Sequential(nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).to(device)
        self.opt = torch.optim.SGD(self.D.parameters(), lr=1e-3)
        self.log = {"gp": [], "d": []}
    def gp(self, real, fake):
        a = torch.rand(len(real), 1, device=device)
        z = (a * real + (1 - a) * fake).requires_grad_()
        g = torch.autograd.grad(self.D(z).sum(), z, create_graph=True)[0]
        return (g.norm(dim=1) - 1).pow(2).mean()
    def step(self, real):
        fake = torch.randn_like(real)
        gp = self.gp(real, fake)
        d = self.D(fake).mean() - self.D(real).mean()
        self.opt.zero_grad(); d.backward(); self.opt.step()
        self.log["gp"].append(gp); self.log["d"].append(d.item())
w = WGAN()
for xb, _ in loader: w.step(xb.to(device))
# %% maml-fast-weights | 40MiB | ^growth .* fast\[(\*|0\.\.1)\] holds .* goes on .*create_graph
w = [torch.randn(256, 256, device=device, requires_grad=True) for _ in range(2)]
def forward(x, w): return torch.tanh(x @ w[0]) @ w[1]
x, y = (t.to(device) for t in next(iter(loader)))
fast = w
for step in range(100):
    loss = F.mse_loss(forward(x, fast), y)
    grads = torch.autograd.grad(loss, fast, create_graph=True)
    fast = [p - 0.01 * g for p, g in zip(fast, grads)]
meta = F.mse_loss(forward(x, fast), y)
# %% maml-module-fast-dict | 40MiB | ^growth .* params\[\*\] holds .*params goes on .*create_graph
from torch.func import functional_call
learner = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)).to(device)
x, y = (t.to(device) for t in next(iter(loader)))
params = dict(learner.named_parameters())
for k in range(100):
    out = functional_call(learner, params, (x,))
    loss = F.mse_loss(out, y)
    grads = torch.autograd.grad(loss, params.values(), create_graph=True)
    params = {n: p - 0.01 * g for (n, p), g in zip(params.items(), grads)}
# %% maml-outer-sum | 60MiB | ^growth .* meta_loss holds .* backward\(\) \(line 17\) comes after .*in each pass
w = [torch.randn(256, 256, device=device, requires_grad=True) for _ in range(2)]
meta_opt = torch.optim.SGD(w, lr=0.1)
def forward(x, w): return torch.tanh(x @ w[0]) @ w[1]
def adapt(x, y, steps=3):
    fast = w
    for step in range(steps):
        loss = F.mse_loss(forward(x, fast), y)
        grads = torch.autograd.grad(loss, fast, create_graph=True)
        fast = [p - 0.01 * g for p, g in zip(fast, grads)]
    return fast
meta_loss = 0
for x, y in loader:
    x, y = x.to(device), y.to(device)
    fast = adapt(x, y)
    meta_loss = meta_loss + F.mse_loss(forward(x, fast), y)
meta_opt.zero_grad(); meta_loss.backward(); meta_opt.step()
# %% maml-tasks-losses | 60MiB | ^growth .* losses\[\*\] in outer\(\) holds .* backward\(\) \(line 13\) comes after
w = [torch.randn(256, 256, device=device, requires_grad=True) for _ in range(2)]
opt = torch.optim.SGD(w, lr=0.1)
def forward(x, w): return torch.tanh(x @ w[0]) @ w[1]
def outer(tasks):
    losses = []
    for x, y in tasks:
        x, y = x.to(device), y.to(device)
        g = torch.autograd.grad(F.mse_loss(forward(x, w), y), w, create_graph=True)
        losses.append(F.mse_loss(forward(x, [p - 0.1 * q for p, q in zip(w, g)]), y))
    return torch.stack(losses).mean()
loss = outer(loader)
opt.zero_grad(); loss.backward(); opt.step()
# %% rl-agent-method | 60MiB | ^growth .* agent\.log_probs\[\*\] holds .* backward\(\) in update\(\) \(line 15\) goes through
class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 4)).to(device)
        self.opt = torch.optim.Adam(self.policy.parameters())
        self.log_probs, self.rewards = [], []
    def act(self, obs):
        d = torch.distributions.Categorical(logits=self.policy(obs))
        a = d.sample()
        self.log_probs.append(d.log_prob(a))
        return a
    def update(self):
        R = torch.tensor(self.rewards, device=device)
        loss = -(torch.stack(self.log_probs).mean(1) * R).sum()
        self.opt.zero_grad(); loss.backward(); self.opt.step()
        self.log_probs.clear(); self.rewards.clear()
agent = Agent()
for episode in range(2):
    for t in range(500):
        agent.act(torch.randn(512, 64, device=device))
        agent.rewards.append(1.0)
    agent.update()
# %% rl-never-cleared | 60MiB | ^growth .* agent\.log_probs\[\*\] holds .* has gone through .*empty agent\.log_probs
class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 4)).to(device)
        self.opt = torch.optim.Adam(self.policy.parameters())
        self.log_probs, self.rewards = [], []
    def act(self, obs):
        d = torch.distributions.Categorical(logits=self.policy(obs))
        a = d.sample()
        self.log_probs.append(d.log_prob(a))
        return a
    def update(self, n):
        loss = -torch.stack(self.log_probs[-n:]).mean()
        self.opt.zero_grad(); loss.backward(retain_graph=True); self.opt.step()
agent = Agent()
for episode in range(60):
    for t in range(10):
        agent.act(torch.randn(512, 64, device=device))
    agent.update(10)
# %% rl-two-cells | 60MiB | ^growth .* policy\.saved_log_probs\[\*\] holds .*in finish_episode\(\) \(In\[[34]\] line \d+\)
# ## earlier
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 4))
        self.saved_log_probs, self.rewards = [], []
    def forward(self, x): return F.softmax(self.net(x), dim=-1)
policy = Policy().to(device)
opt = torch.optim.Adam(policy.parameters())
def select_action(state):
    m = torch.distributions.Categorical(policy(state))
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action
def finish_episode():
    loss = -torch.cat(policy.saved_log_probs).sum()
    opt.zero_grad(); loss.backward(); opt.step()
    del policy.saved_log_probs[:], policy.rewards[:]
# ## cell
for ep in range(3):
    for t in range(1, 400):
        action = select_action(torch.randn(512, 64, device=device))
        policy.rewards.append(1.0)
    finish_episode()
# %% rl-main-function | 60MiB | ^growth .* agent\.log_probs\[\*\] in main\(\) holds .* backward\(\) in learn\(\)
class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 4)).to(device)
        self.opt = torch.optim.Adam(self.policy.parameters())
        self.log_probs = []
    def act(self, obs):
        d = torch.distributions.Categorical(logits=self.policy(obs))
        a = d.sample()
        self.log_probs.append(d.log_prob(a))
        return a
    def learn(self):
        loss = -torch.stack(self.log_probs).mean()
        self.opt.zero_grad(); loss.backward(); self.opt.step()
        self.log_probs = []
def play(agent):
    for t in range(500): agent.act(torch.randn(512, 64, device=device))
def main():
    agent = Agent()
    for episode in range(2):
        play(agent)
        agent.learn()
main()
# %% actor-critic-two-methods | 60MiB | ^growth .* ac\.saved_actions\[\*\] holds .* backward\(\) in finish_episode\(\)
class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pi, self.v = nn.Linear(64, 256), nn.Linear(256, 4), nn.Linear(256, 1)
        self.saved_actions, self.rewards = [], []
    def forward(self, s):
        h = F.relu(self.body(s)); return F.softmax(self.pi(h), -1), self.v(h)
ac = ActorCritic().to(device)
opt = torch.optim.Adam(ac.parameters(), lr=3e-2)
Saved = collections.namedtuple("Saved", ["log_prob", "value"])
def select_action(s):
    p, v = ac(s)
    m = torch.distributions.Categorical(p); a = m.sample()
    ac.saved_actions.append(Saved(m.log_prob(a), v))
    return a
def finish_episode():
    pl, vl = [], []
    for (lp, v), r in zip(ac.saved_actions, ac.rewards):
        pl.append(-lp * r); vl.append(F.smooth_l1_loss(v.squeeze(-1), torch.full((2048,), r, device=device)))
    opt.zero_grad(); (torch.stack(pl).sum() + torch.stack(vl).sum()).backward(); opt.step()
    del ac.rewards[:]; del ac.saved_actions[:]
def main():
    for ep in range(10):
        for t in range(1000):
            a = select_action(torch.randn(2048, 64, device=device))
            ac.rewards.append(1.0)
        finish_episode()
main()
# %% grad-accum-sum-then-backward | 60MiB | ^growth .* total holds .* backward\(\) \(line 9\) comes after .*in each pass
accum = 100
optimizer.zero_grad()
total = 0
for i, (xb, yb) in enumerate(loader):
    loss = criterion(net(xb.to(device)), yb.to(device)) / accum
    total = total + loss
    if (i + 1) % accum == 0:
        total.backward()
        optimizer.step(); optimizer.zero_grad()
        total = 0
# %% lstm-hidden-tuple-function | 90MiB | ^growth .* hidden in train_epoch\(\) holds .*hidden\.detach
lstm = nn.LSTM(256, 256, batch_first=True).to(device)
head = nn.Linear(256, 256).to(device)
opt = torch.optim.SGD([*lstm.parameters(), *head.parameters()], lr=1e-3)
def train_epoch(seq, hidden):
    for i in range(60):
        xb = seq[i].to(device).view(16, 32, 256)
        out, hidden = lstm(xb, hidden)
        loss = head(out).pow(2).mean()
        opt.zero_grad(); loss.backward(retain_graph=True)
    return hidden
seq = torch.randn(60, 512, 256)
h0 = (torch.zeros(1, 16, 256, device=device), torch.zeros(1, 16, 256, device=device))
train_epoch(seq, h0)
# %% retain-graph-loss-list | 60MiB | ^growth .* loss_terms\[\*\] holds .*Keep l1\.detach\(\) and l2
loss_terms = []
for epoch in range(2):
    for xb, yb in loader:
        xb, yb = xb.to(device), yb.to(device)
        out = net(xb)
        l1, l2 = F.l1_loss(out, yb), F.mse_loss(out, yb)
        optimizer.zero_grad()
        l1.backward(retain_graph=True)
        l2.backward(retain_graph=True)
        optimizer.step()
        loss_terms.append((l1, l2))
# %% teacher-ensemble-avg | 60MiB | ^growth .* avg_pred holds .*avg_pred\.detach
avg_pred = None
members = [net, net, net]
for xb, yb in loader:
    xb = xb.to(device)
    preds = torch.stack([m(xb) for m in members]).mean(0)
    avg_pred = preds if avg_pred is None else 0.5 * avg_pred + 0.5 * preds
# %% compiled-predict | 90MiB | ^eval-is-not-no-grad .*line 6
deep = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]).to(device)
fast_net = torch.compile(deep)
fast_net.eval()
big_x = torch.randn(16384, 256, device=device)
y = fast_net(big_x)
print(y.argmax(1).float().mean().item())
# %% compiled-predict-other-cell | 90MiB | ^eval-is-not-no-grad .*line 5
# ## earlier
deep = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(12)]).to(device)
deep = torch.compile(deep)
# ## cell
deep.eval()
scores = []
for i in range(0, 51200, 8192):
    scores.append(deep(X[i:i + 8192].to(device)).argmax(1).cpu())
# %% compiled-predict-function | 90MiB | ^eval-is-not-no-grad .*predict\(\)
deep = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]).to(device)
compiled = torch.compile(deep, mode="reduce-overhead")
def predict(model, x):
    model.eval()
    return model(x.to(device)).argmax(1).cpu()
p = predict(compiled, X[:16384])
# %% amp-loss-only | 90MiB | ^activations .*forward pass, too, under autocast: the one on line 9
deep = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(12)]).to(device)
opt = torch.optim.SGD(deep.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for i in range(0, 51200, 8192):
    xb, yb = X[i:i + 8192].to(device), Y[i:i + 8192].to(device)
    opt.zero_grad()
    out = deep(xb)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(out, yb)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
# %% amp-loss-only-step | 90MiB | ^activations .*forward pass, too, under autocast: the one on line 8
deep = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(12)]).to(device)
opt = torch.optim.SGD(deep.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
def train_step(xb, yb):
    opt.zero_grad()
    pred = deep(xb)
    with torch.cuda.amp.autocast():
        loss = F.mse_loss(pred, yb)
    scaler.scale(loss).backward()
    scaler.step(opt); scaler.update()
    return loss.item()
for i in range(0, 51200, 8192):
    train_step(X[i:i + 8192].to(device), Y[i:i + 8192].to(device))
# %% validation-inside-training | 150MiB | ^eval-is-not-no-grad .*line 12
class Learner:
    def __init__(self): self.deep = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(20)]).to(device); self.opt = torch.optim.SGD(self.deep.parameters(), lr=.1)
    def fit(self, epochs=1):
        for e in range(epochs):
            self.deep.train()
            for i, (xb, yb) in enumerate(loader):
                if i == 3: break
                loss = criterion(self.deep(xb.to(device)), yb.to(device))
                self.opt.zero_grad(); loss.backward(); self.opt.step()
            self.deep.eval()
            val_pred = self.deep(X[:8192].to(device))
            print(criterion(val_pred, Y[:8192].to(device)).item())
Learner().fit()
