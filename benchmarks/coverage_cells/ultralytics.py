# %% yolo from yaml | https://docs.ultralytics.com/models/yolov8/
import torch
from ultralytics.nn.tasks import DetectionModel

model = DetectionModel("yolov8n.yaml", ch=3, nc=80, verbose=False).cuda().eval()
with torch.no_grad():
    out = model(torch.randn(4, 3, 640, 640, device="cuda"))
