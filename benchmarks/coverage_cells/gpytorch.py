# %% exact gp | https://docs.gpytorch.ai/en/stable/examples/01_Exact_GPs/Simple_GP_Regression.html
import gpytorch
import torch


class ExactGPModel(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


train_x = torch.linspace(0, 1, 500).cuda()
train_y = torch.sin(train_x * 6.28) + torch.randn(500).cuda() * 0.2
likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
model = ExactGPModel(train_x, train_y, likelihood).cuda()
model.train()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
for _ in range(5):
    optimizer.zero_grad()
    loss = -mll(model(train_x), train_y)
    loss.backward()
    optimizer.step()

# %% svgp | https://docs.gpytorch.ai/en/stable/examples/04_Variational_and_Approximate_GPs/SVGP_Regression_CUDA.html
import gpytorch
import torch
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy


class GPModel(ApproximateGP):
    def __init__(self, inducing_points):
        dist = CholeskyVariationalDistribution(inducing_points.size(0))
        super().__init__(
            VariationalStrategy(self, inducing_points, dist, learn_inducing_locations=True)
        )
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


train_x, train_y = torch.rand(4096, 8), torch.rand(4096)
model = GPModel(inducing_points=train_x[:500, :]).cuda()
likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
model.train()
likelihood.train()
optimizer = torch.optim.Adam(
    [{"params": model.parameters()}, {"params": likelihood.parameters()}], lr=0.01
)
mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=train_y.size(0))
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(train_x.cuda(), train_y.cuda()), batch_size=1024, shuffle=True
)
for x, y in loader:
    optimizer.zero_grad()
    loss = -mll(model(x), y)
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    means = model(train_x[:512].cuda()).mean.cpu()

# %% deep kernel | https://docs.gpytorch.ai/en/stable/examples/06_PyTorch_NN_Integration_DKL/index.html
import gpytorch
import torch

x, y = torch.randn(1000, 18).cuda(), torch.randn(1000).cuda()
features = torch.nn.Sequential(
    torch.nn.Linear(18, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 50), torch.nn.Linear(50, 2)
)


class DeepKernel(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        rbf = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))
        self.covar = gpytorch.kernels.GridInterpolationKernel(rbf, num_dims=2, grid_size=100)
        self.features = features
        self.scale = gpytorch.utils.grid.ScaleToBounds(-1.0, 1.0)

    def forward(self, x):
        z = self.scale(self.features(x))
        return gpytorch.distributions.MultivariateNormal(self.mean(z), self.covar(z))


likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
model = DeepKernel(x, y, likelihood).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
for _ in range(3):
    optimizer.zero_grad()
    loss = -mll(model(x), y)
    loss.backward()
    optimizer.step()
