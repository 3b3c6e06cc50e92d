import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 26 * 26, 10)).to(device)
model.eval()
test_loader = [(torch.rand(1, 1, 28, 28), torch.randint(0, 10, (1,))) for _ in range(4)]

# --- cell
def fgsm_attack(image, epsilon, data_grad):
    return torch.clamp(image + epsilon * data_grad.sign(), 0, 1)

def test(model, device, test_loader, epsilon):
    correct, adv_examples = 0, []
    for data, target in test_loader:
        data, target = data.to(device), target.to(device)
        data.requires_grad = True
        output = model(data)
        loss = F.cross_entropy(output, target)
        model.zero_grad()
        loss.backward()
        perturbed = fgsm_attack(data, epsilon, data.grad.data)
        output = model(perturbed)
        correct += int(output.argmax(1).eq(target))
        adv_examples.append(perturbed.squeeze().detach().cpu().numpy())
    return correct / len(test_loader), adv_examples

accuracies = [test(model, device, test_loader, eps)[0] for eps in (0, 0.1)]
